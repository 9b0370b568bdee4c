"""A model in which nothing can be quantized: whoever named an output gets a copy there, and is told why."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner, Result

import onnxq
from onnxq.checking import saved
from onnxq.checking.models import Check
from onnxq.cli import main
from onnxq.drafts import tuned as drafts
from onnxq.errors import BadOutput, NothingToDo
from onnxq.plan import COMPUTING
from onnxq.runtime.session import Session


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "300"})


def empty(folder: Path) -> Path:
    return tiny.save(tiny.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), folder)


def kept(folder: Path, **options: object) -> Path:
    """A model whose only weights holds numbers that no short format takes."""
    folder.mkdir(exist_ok=True)
    made = tiny.model("g (float[N, 300] x) => (float[N, 300] y) { y = Mul(x, huge) }")
    huge = np.full((1, 300), 1e30, np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(huge, "huge"))
    onnx.save(made, folder / "model.onnx", **options)  # type: ignore[arg-type]
    return folder / "model.onnx"


def test_the_model_is_copied_to_the_output(tmp_path: Path) -> None:
    path, output = empty(tmp_path), tmp_path / "out.onnx"
    result = run("quantize", path, "-o", output)
    assert result.exit_code == 0
    assert "holds no floating-point weights" in result.stdout
    assert "a copy of" in result.stdout
    assert output.read_bytes() == path.read_bytes()
    assert run("quantize", path, "-o", output).exit_code == 1  # it is there
    assert json.loads(run("quantize", path, "-o", output, "-f", "--json").stdout)["copied"]


@pytest.mark.parametrize("words", ["quantize", "plan", "analyze", "dequantize", "doctor --fix"])
def test_a_program_that_reads_json_gets_some(words: str, tmp_path: Path) -> None:
    result = run(*words.split(), empty(tmp_path), "--json")
    assert not result.exit_code, result.output
    assert isinstance(json.loads(result.stdout), dict | list), result.stdout
    if words == "quantize":
        assert json.loads(result.stdout)["output"] is None
        assert "holds no floating-point weights" in json.loads(result.stdout)["nothing_to_do"]
        assert run("quantize", empty(tmp_path), "--json", "--strict").exit_code == 1


def test_its_data_go_with_it(tmp_path: Path) -> None:
    path = kept(tmp_path / "in", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    result = onnxq.quantize(path, tmp_path / "out" / "model.onnx", "w4a16")
    assert "'huge' holds numbers too large or too small for float16" in result.copied
    assert result.check is None and not result.plan.choices
    feed = {"x": np.ones((2, 300), np.float32)}
    for file in (tmp_path / "in").rglob("*.bin"):
        wanted = Session(path).run(feed)
        file.unlink()
    assert np.array_equal(Session(result.output).run(feed)[0], wanted[0])


@pytest.fixture
def timed_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """From then on every saved file takes so many times as long as the float model, ± 1 %."""
    timed = saved.check_models

    def pretend(ratio: float) -> None:
        def check(*arguments: Any, **options: Any) -> Check:
            times = {"float_ms": 1.0, "quantized_ms": ratio, "latency_spread": 0.01}
            return dataclasses.replace(timed(*arguments, **options), **times)

        monkeypatch.setattr(saved, "check_models", check)

    return pretend


@pytest.mark.parametrize(("ratio", "is_copied"), [(1.02, True), (1.0, True), (0.5, False)])
def test_a_larger_file_has_to_be_faster(
    ratio: float,
    is_copied: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    timed_as: Callable[[float], None],
) -> None:
    """Of a model whose scales and metadata take more than its short weights save."""
    body = " ".join(f"[kept_{i * 104729:x}] x{i + 1} = MatMul(x{i}, w{i})" for i in range(8))
    text = f"g (float[64, 16] x0) => (float[64, 16] y) {{ {body} y = MatMul(x8, w8) }}"
    path = tiny.save(tiny.model(text, {f"w{i}": tiny.normal(16, 16, seed=i) for i in range(9)}), tmp_path)
    recipe = onnxq.Recipe("w8a8-dynamic", rules=(onnxq.Rule("keep", nodes="kept_*"),))
    timed_as(ratio)
    monkeypatch.setattr(drafts, "tune", lambda bench, plan, *_: plan)
    result = onnxq.quantize(path, tmp_path / "out.onnx", recipe)
    assert bool(result.copied) == is_copied
    if is_copied:
        assert result.copied.endswith("and be no faster")
    else:
        assert result.bytes_after > result.bytes_before and result.plan.those(*COMPUTING)


def test_without_an_output_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = empty(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = run("quantize", path)
    assert result.exit_code == 0
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(NothingToDo):
        onnxq.quantize(path)


def test_strict_makes_it_a_failure(tmp_path: Path) -> None:
    for path in (empty(tmp_path), kept(tmp_path / "kept")):
        result = run("quantize", path, "-o", tmp_path / "out.onnx", "--strict", "-s", "w4a16")
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "out.onnx").exists()


def test_a_model_is_not_copied_onto_itself(tmp_path: Path) -> None:
    path = empty(tmp_path)
    with pytest.raises(BadOutput):
        onnxq.quantize(path, path, force=True)


def of_long_names(folder: Path) -> Path:
    """What little of it can be stored saves less than the node that unpacks it and the metadata take."""
    body = " ".join(f"[kept_{i * 104729:x}] x{i + 1} = MatMul(x{i}, w{i})" for i in range(40))
    text = f"g (float[1, 3, 8, 17] x0) => (float[1, 90, 8, 17] y) {{ {body} y = Conv(x40, k) }}"
    weights = {f"w{i}": tiny.normal(17, 17, seed=i) for i in range(40)} | {"k": tiny.normal(90, 3, 1, 1)}
    return tiny.save(tiny.model(text, weights), folder)


@pytest.mark.parametrize(("ratio", "is_copied"), [(0.97, True), (0.5, False)])
def test_a_larger_file_may_be_faster_by_float_kernels(
    ratio: float, is_copied: bool, tmp_path: Path, timed_as: Callable[[float], None]
) -> None:
    """onnxruntime's optimizer makes more of some graphs once they were prepared: then it has to be by a tenth."""
    timed_as(ratio)
    recipe = onnxq.Recipe("w8a16", rules=(onnxq.Rule("keep", nodes="kept_*"),))
    result = onnxq.quantize(of_long_names(tmp_path), tmp_path / "out.onnx", recipe)
    assert bool(result.copied) == is_copied
    assert is_copied or not result.plan.those(*COMPUTING)


def test_a_file_that_gains_nothing_is_not_written(tmp_path: Path, timed_as: Callable[[float], None]) -> None:
    """Its kernels are float's."""
    timed_as(1.0)
    path, output = of_long_names(tmp_path), tmp_path / "out.onnx"
    words = ("quantize", path, "-o", output, "-s", "w8a16", "--keep", "kept_*")
    result = run(*words, "--strict")
    assert (result.exit_code, output.exists()) == (1, False)
    assert "nothing to gain: quantized it would have" in result.stderr
    result = run(*words)
    assert result.exit_code == 0 and "nothing to gain" in result.stdout
    assert output.read_bytes() == path.read_bytes()
    assert run(*words, "--force", "--keep-slow").exit_code == 0  # whoever insists gets it
    assert {node.op_type for node in onnx.load(output).graph.node} == {"MatMul", "Conv", "Cast"}


def of_folded_constants(folder: Path) -> Path:
    """In floats, with constants of several types that are computed before it runs."""
    text = """g (float[2, 32] x) => (float[2, 32] y) {
        n = Cast <to = 1> (short)  d = Add (w, n)  i = Gather (d, places)  h = MatMul (x, i)  y = Identity (h)
    }"""
    constants = {"w": tiny.normal(32, 32), "short": np.ones(1, np.float16), "places": np.arange(32)}
    return tiny.save(tiny.model(text, constants), folder)


@pytest.mark.parametrize("words", [("dequantize",), ("doctor", "--fix")])
def test_a_model_that_is_what_it_should_become_is_copied_and_that_is_said(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    path, output = of_folded_constants(tmp_path), tmp_path / "out.onnx"
    command, *more = words
    without = run(command, path, *more)
    assert without.exit_code == 0 and not list(tmp_path.glob("*.*.onnx"))
    done = run(command, path, *more, "-o", output)
    assert done.exit_code == 0 and done.stdout == f"{without.stdout.strip()}; {output} is a copy of it\n", done.output
    assert output.read_bytes() == path.read_bytes()
    assert "give --force" in run(command, path, *more, "-o", output).stderr
    told = json.loads(run(command, path, *more, "-o", output, "-f", "--json").stdout)
    assert told == {"output": str(output), "copied": without.stdout.strip()}


def test_short_weights_become_floats_whatever_unpacks_them(tmp_path: Path) -> None:
    model = tiny.model("g (float[2, 32] x) => (float[2, 32] y) { w = Cast <to = 1> (short)  y = MatMul (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(tiny.normal(32, 32).astype(np.float16), "short"))
    assert "weights in float32" in run("dequantize", tiny.save(model, tmp_path), "-o", tmp_path / "o.onnx").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "-s", "w4a16", "--data", "x.npz", "-o", "made"),
        ("convert", "--to", "onnxq", "-o", "made"),
        ("convert", "--to", "gguf", "-o", "made.gguf"),
    ],
)
def test_a_file_that_is_not_written_is_told_by_the_exit_code(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever named none learns it by the sentence."""
    monkeypatch.chdir(tmp_path)
    path = of_folded_constants(tmp_path)
    np.savez("x.npz", x=tiny.normal(8, 2, 32))
    command, *more = (f"{word}.onnx" if word == "made" else word for word in words)
    done = run(command, path, *more)
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and done.stderr.startswith("onnxq: "), done.output
    assert not list(tmp_path.glob("made*"))
    if command == "convert":
        assert run(command, path, *more[:2]).exit_code == 0
    if "onnxq" in words:
        assert done.stderr.endswith("there is nothing to convert; 'onnxq quantize -t onnxq' quantizes a float model\n")


def test_a_copy_that_does_not_open_is_told(tmp_path: Path) -> None:
    """As the model does not; a scheme that changes something makes it one that does."""
    text = "g (float16[N,8] x) => (bool[N,8] y) { c = Constant <value = float {1.0}> ()  y = Greater (x, c) }"
    model, output = tiny.save(tiny.model(text, {}), tmp_path), tmp_path / "q.onnx"
    done = CliRunner().invoke(main, ["quantize", str(model), "-s", "w8a8-dynamic", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert re.search(r"onnxruntime [\d.]+ does not open it: .*q.onnx is a copy of it", " ".join(done.output.split()))


def test_weights_in_bf16_become_products_again_as_it_is_said(tmp_path: Path) -> None:
    """Standard operators read them as floats, as they do those of a float model: there are no codes to convert."""
    text = "g (float[N,64] x) => (float[N,64] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v) }"
    model = tiny.save(tiny.model(text, {"w": tiny.normal(64, 64), "v": tiny.normal(64, 64, seed=1)}), tmp_path)
    first, plain, back = (tmp_path / f"{name}.onnx" for name in ("first", "plain", "back"))
    words = ("-s", "bf16", "-t", "onnxq", "--no-check")
    assert run("quantize", model, *words, "-o", first).exit_code == 0
    assert run("convert", first, "--to", "onnx", "-o", plain).exit_code == 0
    refused = run("convert", plain, "--to", "onnxq", "-o", back)
    assert "'onnxq quantize -s bf16 -t onnxq --requantize'" in refused.stderr, refused.output
    done = run("quantize", plain, *words, "--requantize", "-o", back)
    assert done.exit_code == 0, done.output
    x = {"x": tiny.normal(4, 64, seed=2)}
    np.testing.assert_array_equal(Session(back).run(x)[0], Session(first).run(x)[0])

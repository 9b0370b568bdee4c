"""What cannot be done is refused in one sentence, leaves nothing behind and does not touch the input."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from onnx import numpy_helper

from onnxq import cli
from onnxq.errors import MissingRuntime
from onnxq.files import guard
from onnxq.output import write as save
from onnxq.runtime.ort import installed

MATMUL = "g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }"
W = {"w": tiny.normal(64, 64)}


def text(body: str, folder: Path, **options: int) -> Path:
    """A model with 64×64 weights `w` and `v`, not checked to be legal."""
    return tiny.save(tiny.model(body, {"w": tiny.normal(64, 64), "v": tiny.normal(64, 64)}, **options), folder)


def refusal(*arguments: object, code: int = 1) -> str:
    """The one sentence that the command answers with."""
    result = CliRunner().invoke(cli.main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    said = result.stderr if code else result.stdout
    assert len(said.strip().splitlines()) == 1, said
    assert not code or said.startswith("onnxq: ")
    return said


def assert_refused(model: Path, words: str, *options: object, scheme: str = "w4a16") -> None:
    folder = model.parent
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    said = refusal("quantize", model, "-s", scheme, "-o", folder / "out.onnx", *options)
    assert words in said
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def truncated(folder: Path) -> Path:
    path = text(MATMUL, folder)
    path.write_bytes(path.read_bytes()[:5000])
    return path


def written(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "model.onnx").write_bytes(content)
        return folder / "model.onnx"

    return write


def with_data_at(location: str, size: int = 1 << 14) -> Callable[[Path], Path]:
    """A model in a folder of its own whose weight lies at `location`."""

    def write(folder: Path) -> Path:
        (folder / "inner").mkdir()
        if size:
            (folder / "inner" / location).write_bytes(b"\0" * size)
        model = tiny.model(MATMUL, W)
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        return tiny.save(model, folder / "inner")

    return write


def with_weight(value: float) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        w = tiny.normal(64, 64)
        w[3, 4] = value
        return tiny.save(tiny.model(MATMUL, {"w": w}), folder)

    return write


def body(nodes: str, **options: int) -> Callable[[Path], Path]:
    return lambda folder: text(f"g (float[1, 64] x) => (float[1, 64] y) {{ {nodes} }}", folder, **options)


BAD_MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "absent": (lambda folder: folder / "model.onnx", "no such file"),
    "folder": (lambda folder: folder, "holds no models: there is no .onnx file in it"),
    "empty": (written(b""), "has neither nodes nor outputs"),
    "text": (written(b"this is not a model\n" * 99), "does not parse as protobuf"),
    "tensor": (written(numpy_helper.from_array(W["w"]).SerializeToString()), "is not an ONNX model"),
    "truncated": (truncated, "is cut short"),
    "cycle": (body("a = Add(x, b) b = MatMul(a, w) y = Relu(b)"), "has a cycle"),
    "undefined input": (body("y = MatMul(nothing, w)"), "reads 'nothing', which nothing makes"),
    "undefined output": (body("t = MatMul(x, w)"), "output 'y' is produced by no node"),
    "value made twice": (body("y = MatMul(x, w) y = Relu(x)"), "'y' is redeclared"),
    "unknown operator": (body("t = MatMul(x, w) y = Nonsense(t)"), "--no-check quantizes without running it"),
    "unknown domain": (body("t = MatMul(x, w) y = local.Nonsense(t)"), "--no-check quantizes without running it"),
    "future opset": (body("y = MatMul(x, w)", opset=99), "uses opset 99"),
    "shapes that do not fit": (body("t = MatMul(x, w) z = Concat<axis=1>(t, t) y = MatMul(z, v)"), "Incompatible"),
    "no data file": (with_data_at("gone.data", size=0), "needs the data file"),
    "short data file": (with_data_at("short.data", size=99), "ends at byte 16384, the file has 99"),
    "data file elsewhere": (with_data_at("../other.data"), "outside the model's folder"),
    "NaN weight": (with_weight(np.nan), "weight 'w' holds nan at [3, 4]"),
    "infinite weight": (with_weight(-np.inf), "weight 'w' holds -inf at [3, 4]"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_models_that_are_none(name: str, tmp_path: Path) -> None:
    make, words = BAD_MODELS[name]
    assert_refused(make(tmp_path), words)


def test_unknown_domains_can_be_quantized_without_being_run(tmp_path: Path) -> None:
    model = body("t = MatMul(x, w) y = local.Nonsense(t)")(tmp_path)
    result = CliRunner().invoke(cli.main, ["quantize", str(model), "-o", str(tmp_path / "out.onnx"), "--no-check"])
    assert result.exit_code == 0
    ops = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert ops == ["MatMulNBits", "Nonsense"]


def test_no_weights_is_no_failure(tmp_path: Path) -> None:
    model = body("y = Relu(x)")(tmp_path)
    model.write_bytes(tiny.model("g (float[1, 64] x) => (float[1, 64] y) { y = Relu(x) }").SerializeToString())
    assert "nothing to do" in refusal("quantize", model, "-o", tmp_path / "out.onnx", code=0)
    assert (tmp_path / "out.onnx").read_bytes() == model.read_bytes()


def test_quantized_models_are_recognized(tmp_path: Path) -> None:
    model, output = text(MATMUL, tmp_path), tmp_path / "small.onnx"
    assert CliRunner().invoke(cli.main, ["quantize", str(model), "-o", str(output)]).exit_code == 0
    for scheme in ("w4a16", "w8a8-dynamic"):
        assert_refused(output, "is quantized already", scheme=scheme)


BAD_DATA: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "another name": ({"z": np.zeros((4, 64), np.float32)}, "the model's inputs are x"),
    "another shape": ({"x": np.zeros((4, 63), np.float32)}, "has shape [1, 63], the model expects [1, 64]"),
    "another rank": ({"x": np.zeros((4, 1, 1, 64), np.float32)}, "has shape [4, 1, 1, 64], the model expects [1, 64]"),
    "another type": ({"x": np.full((4, 64), "a")}, "the model expects float32"),
    "no samples": ({"x": np.zeros((0, 64), np.float32)}, "holds no samples"),
    "no arrays": ({}, "the model's inputs are x"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_does_not_fit(name: str, tmp_path: Path) -> None:
    arrays, words = BAD_DATA[name]
    np.savez(tmp_path / "data.npz", **arrays)
    assert_refused(text(MATMUL, tmp_path), words, "--data", tmp_path / "data.npz", scheme="w8a8")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut short"], ids=["empty", "text", "zip"])
def test_data_that_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    assert_refused(text(MATMUL, tmp_path), "cannot be read", "--data", tmp_path / "data.npz", scheme="w8a8")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("gone.npz", "no such file"),
        ("data.csv", "no such file"),
        (".", "holds no arrays (.npz, .npy), images, sounds, texts or tables"),
        ("nowhere:samples", "No module named 'nowhere'"),
        ("math:nothing", "'math' has no 'nothing'"),
    ],
)
def test_data_that_is_not_there(source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(text(MATMUL, tmp_path), words, "--data", source, scheme="w8a8")


BAD_GENERATORS = {
    "raises": "def f(): raise RuntimeError('boom\\nand more')",
    "raises late": "import numpy\ndef f():\n yield {'x': numpy.zeros((1, 64))}\n raise ValueError('boom')",
    "ragged": "def f(): yield {'x': [[1], [1, 2]]}",
    "fails at import": "boom = 1 / 0",
    "does not parse": "def",
}


def test_a_function_that_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "giving.py").write_text("def f(): return None")
    words = "giving:f gave None, neither a list of dicts nor a generator of them"
    assert_refused(text(MATMUL, tmp_path), words, "--data", "giving:f", scheme="w8a8")


def test_a_function_that_wants_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "wanting.py").write_text("def f(boom): return []")
    words = "--data 'wanting:f' is called without anything, but takes 'boom'"
    assert_refused(text(MATMUL, tmp_path), words, "--data", "wanting:f", scheme="w8a8")


@pytest.mark.parametrize("name", BAD_GENERATORS)
def test_functions_that_fail(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = f"generator_{name.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(BAD_GENERATORS[name])
    assert_refused(text(MATMUL, tmp_path), "failed with ", "--data", f"{module}:f", scheme="w8a8")


BAD_RECIPES = {
    "rule = 3": "rules are written as [[rule]] tables",
    "rule = ['a']": "nothing else",
    "[[rule]]\nset = 3": "are strings",
    "[[rule]]\nset = 'keep'\nnodes = 5": "are strings",
    "[[rule]]\nset = 'keep'\nops = 'MatMul'": "a list of strings",
    "[[rule]]\nset = 'keep'\nops = [1]": "a list of strings",
    "min_sqnr = nan": "must be a number",
}


@pytest.mark.parametrize("toml", BAD_RECIPES)
def test_recipes_of_the_wrong_types(toml: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(toml)
    assert_refused(text(MATMUL, tmp_path), BAD_RECIPES[toml], "--recipe", tmp_path / "recipe.toml")


BAD_PLANS = [
    ({"format": "int5"}, "unknown number format 'int5'"),
    ({"format": None}, "format None"),
    ({"format": "float16"}, "format float16"),
    ({"block": 7}, "block 7"),
    ({"block": None}, "block None"),
    ({"block": "a"}, "choices[0].block: expected int | null, got str"),
    ({"method": "static", "format": "int8", "block": None}, "give --data"),
    ({"method": "magic"}, "not a valid Method"),
    ({"node": "gone"}, "names node 'gone'"),
    ({"reason": None}, "choices[0].reason: expected str, got null"),
    ({"elements": "many"}, "choices[0].elements: expected int, got str"),
]


@pytest.mark.parametrize(("change", "words"), BAD_PLANS, ids=[str(change) for change, _ in BAD_PLANS])
def test_plans_edited_beyond_sense(change: dict[str, object], words: str, tmp_path: Path) -> None:
    model, plan = text(MATMUL, tmp_path), tmp_path / "plan.json"
    assert CliRunner().invoke(cli.main, ["plan", str(model), "-o", str(plan)]).exit_code == 0
    table = json.loads(plan.read_text())
    table["choices"][0] |= change
    plan.write_text(json.dumps(table))
    assert_refused(model, words, "--plan", plan)


def test_plans_of_nothing_are_no_failure(tmp_path: Path) -> None:
    model, plan = text(MATMUL, tmp_path), tmp_path / "plan.json"
    plan.write_text('{"scheme": "w4a16", "target": "ort-cpu", "choices": []}')
    assert "nothing could be quantized" in refusal("quantize", model, "--plan", plan, "-o", tmp_path / "o.onnx", code=0)


def test_ranges_are_of_no_use_without_int8(tmp_path: Path) -> None:
    model, ranges = text(MATMUL, tmp_path), tmp_path / "ranges.json"
    np.savez(tmp_path / "data.npz", x=tiny.normal(4, 64))
    assert "give --data" in refusal("calibrate", model, "-o", ranges)
    data = ["--data", tmp_path / "data.npz", "-s", "w4a16"]
    assert "needs no ranges" in refusal("calibrate", model, "-o", ranges, *data)
    assert not ranges.exists()


def test_static_int8_wants_data(tmp_path: Path) -> None:
    assert_refused(text(MATMUL, tmp_path), "--data", scheme="w8a8")


def test_outputs_are_not_replaced_unasked(tmp_path: Path) -> None:
    model = text(MATMUL, tmp_path)
    (tmp_path / "out.onnx").write_bytes(b"precious")
    assert_refused(model, "give --force to replace it")
    assert (tmp_path / "out.onnx").read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["model.onnx", "link.onnx"])
def test_the_input_is_never_the_output(name: str, tmp_path: Path) -> None:
    model = text(MATMUL, tmp_path)
    (tmp_path / "link.onnx").symlink_to(model)
    assert "so it cannot be the output" in refusal("quantize", model, "-o", tmp_path / name, "--force")
    assert onnx.load(model).graph.node[0].op_type == "MatMul"


@pytest.mark.parametrize("option", ["--output", "--report"])
def test_nothing_that_is_read_is_replaced(option: str, tmp_path: Path) -> None:
    model, data = text(MATMUL, tmp_path), tmp_path / "data.npz"
    np.savez(data, x=np.zeros((4, 64), np.float32))
    before = model.read_bytes(), data.read_bytes()
    read = data if option == "--output" else model
    options = {"--output": tmp_path / "out.onnx", "--data": data, option: read}
    said = refusal("quantize", model, "--force", *(word for pair in options.items() for word in pair))
    assert ("must end in .onnx" if option == "--output" else "so it cannot be the output") in said
    assert (model.read_bytes(), data.read_bytes()) == before


def test_devices_are_never_replaced(tmp_path: Path) -> None:
    model, pipe = text(MATMUL, tmp_path), tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    assert "is not a file" in refusal("quantize", model, "-o", pipe, "--force")
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", [".", "/", "long" * 99], ids=["here", "root", "long"])
def test_outputs_that_are_no_names(name: str, tmp_path: Path) -> None:
    said = refusal("quantize", text(MATMUL, tmp_path), "-o", name)
    assert "is a folder" in said or "File name too long" in said


def test_an_empty_name_is_no_output(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["quantize", str(text(MATMUL, tmp_path)), "-o", ""])
    assert (result.exit_code, "'-o': is empty, where a path is expected" in result.output) == (2, True)


def test_what_is_written_is_never_written_over(tmp_path: Path) -> None:
    """Neither the report nor the ranges may be the output."""
    model, output = text(MATMUL, tmp_path), tmp_path / "out.onnx"
    np.savez(tmp_path / "data.npz", x=tiny.normal(4, 64))
    ranges = ["--data", tmp_path / "data.npz", "-s", "w8a8", "--ranges", output]
    assert "choose another name" in refusal("quantize", model, "-o", output, *ranges)
    assert not output.exists()
    assert "choose another name" in refusal("quantize", model, "-o", output, "--report", output)
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "words"), [("model.onnx", "is a file; name a folder"), ("model.onnx/inner", "cannot be written")]
)
def test_traces_need_a_folder(name: str, words: str, tmp_path: Path) -> None:
    assert_refused(text(MATMUL, tmp_path), words, "--trace", tmp_path / name)


def test_the_folder_of_the_output_is_there(tmp_path: Path) -> None:
    said = refusal("quantize", text(MATMUL, tmp_path), "-o", tmp_path / "gone" / "out.onnx")
    assert "does not exist" in said


def test_folders_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = text(MATMUL, tmp_path)
    with monkeypatch.context() as patch:  # whoever runs the tests may be allowed to write anywhere
        patch.setattr(guard.os, "access", lambda path, mode: mode != os.W_OK)
        assert_refused(model, "cannot be written to")


def test_full_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model = text(MATMUL, tmp_path)
    monkeypatch.setattr(save.onnx, "save", full)
    assert_refused(model, "no space left")


def test_no_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingRuntime, match=r"pip install 'onnxq\[cpu\]'"):
        installed.require()
    assert_refused(text(MATMUL, tmp_path), "onnxruntime is not installed")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupted_runs_leave_nothing(name: str, code: int, tmp_path: Path) -> None:
    """The model is written and checked, and about to be moved into its place."""
    folder, log = tmp_path / "models", tmp_path / "points"
    folder.mkdir()
    text(MATMUL, folder)
    command = [sys.executable, "-m", "onnxq", "quantize", "model.onnx", "-s", "w8a16", "-o", "out.onnx"]
    halted = os.environ | {"ONNXQ_FAULT": "STOP publish.model", "ONNXQ_FAULT_LOG": str(log)}
    heard = lambda: signal.signal(getattr(signal, name), signal.SIG_DFL)  # noqa: E731 - whatever started the tests
    process = subprocess.Popen(command, cwd=folder, env=halted, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    while not (passed := re.findall(r"^publish.model (\d+)$", log.read_text() if log.exists() else "", re.MULTILINE)):
        assert process.poll() is None
        time.sleep(0.02)
    assert len(list(folder.iterdir())) > 1
    process.send_signal(getattr(signal, name))
    status = Path("/proc", passed[0], "status")  # of the process that does the work, which has yet to be told
    while not int(re.findall(r"^ShdPnd:\s*(\w+)$", status.read_text(), re.MULTILINE)[0], 16):
        time.sleep(0.02)
    os.kill(int(passed[0]), signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]

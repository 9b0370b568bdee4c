"""Models as `.ort`: onnxruntime opens them, and they compute what the .onnx does; what has no place there is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

import onnxq
from onnxq.cli import main
from onnxq.conversion import to_ort as module
from onnxq.conversion.to_ort import to_ort
from onnxq.errors import BadModel, BadOutput, MissingRuntime
from onnxq.recipe import Recipe
from onnxq.runtime import native

pytestmark = pytest.mark.usefixtures("quick")
TEXT = """g (float[n, 8, 12, 12] x) => (float[n, 10] y) {
    [conv] c = Conv<pads = [1, 1, 1, 1]>(x, k)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)
    [up] a = MatMul(f, w)  b = Relu(a)  [down] y = MatMul(b, v) }"""
CONSTANTS = {"k": tiny.normal(64, 8, 3, 3), "w": tiny.normal(64, 128, seed=1), "v": tiny.normal(128, 10, seed=2)}
DATA = [{"x": tiny.normal(2, 8, 12, 12, seed=seed)} for seed in range(8)]


def quantized(folder: Path, scheme: str, target: str) -> Path:
    model, output = tiny.save(tiny.model(TEXT, CONSTANTS), folder), folder / "small.onnx"
    recipe = Recipe(scheme, min_sqnr=-np.inf, keep_slow=True)
    onnxq.quantize(model, output, recipe, target=target, data=DATA if scheme == "w8a8" else None, check=False)
    return output


def run(path: Path, *, library: bool = False) -> NDArray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if library:
        options.register_custom_ops_library(str(onnxq.ops_library()))
    (y,) = onnxruntime.InferenceSession(path, options).run(None, DATA[0])
    return y


@pytest.mark.parametrize(
    ("scheme", "target"), [("w8a8", "ort-cpu"), ("w4a16", "ort-cpu"), ("nf4", "ort-cpu"), ("fp16", "onnx")]
)
def test_the_same_numbers(scheme: str, target: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, scheme, target)
    done = to_ort(small, tmp_path / "m.ort")
    assert done.output.read_bytes()[4:8] == b"ORTM" and done.bytes_after == done.output.stat().st_size
    assert done.check is not None and done.check.sqnr > 60
    assert tiny.sqnr(run(small), run(done.output)) > 100


def test_a_float_model_by_the_command(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    done = CliRunner().invoke(main, ["convert", str(model), "--to", "ort", "-o", str(tmp_path / "m.ort")])
    assert done.exit_code == 0 and "in onnxruntime's format" in done.stdout, done.output
    assert tiny.sqnr(run(model), run(tmp_path / "m.ort")) > 100
    again = ["convert", str(model), "--to", "ort", "-o", str(tmp_path / "m.ort")]
    assert "exists; give --force" in CliRunner().invoke(main, again).stderr
    done = CliRunner().invoke(main, [*again, "--force", "--json"])
    assert json.loads(done.stdout)["check"]["sqnr"] > 60
    done = CliRunner().invoke(main, [*again, "--force", "--shard-size", "1MB"])
    assert (
        done.exit_code == 1
        and "--shard-size is for files of ONNX and safetensors: .ort is a single file" in done.stderr
    )


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.parametrize("scheme", ["w8a8", "w4a16"])
def test_own_operators_need_the_library(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = quantized(tmp_path, scheme, "onnxq")
    done = to_ort(small, tmp_path / "m.ort")
    assert "it opens only with onnxq's library" in done.notes[0]
    assert tiny.sqnr(run(small, library=True), run(done.output, library=True)) > 100
    with pytest.raises(Exception, match="not a registered function/op"):
        run(done.output)
    monkeypatch.setattr(native, "path", lambda: None)
    with pytest.raises(MissingRuntime, match=r"\.ort cannot hold them: 'onnxq convert --to ort-cpu' first"):
        to_ort(small, tmp_path / "other.ort")


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    with pytest.raises(BadOutput, match=r"must end in \.ort"):
        to_ort(model, tmp_path / "m.onnx")
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with pytest.raises(BadModel, match=r"and a \.ort file holds 2 GB: it stays what it is"):
        to_ort(model, tmp_path / "m.ort")
    assert not (tmp_path / "m.ort").exists() and not list(tmp_path.glob(".onnxq-*"))

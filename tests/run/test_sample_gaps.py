"""Samples that hold NaN or infinity are told where something follows from data; data without a number are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from onnxq.cli import main
from onnxq.errors import UnusedOption
from onnxq.quality.gaps import Gaps

pytestmark = pytest.mark.usefixtures("quick")
TEXT = "g (float[1, 16] x) => (float[1, 16] y) { [up] a = MatMul(x, w)  b = Relu(a)  [down] y = MatMul(b, v) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.save(tiny.model(TEXT, {"w": tiny.normal(16, 32), "v": tiny.normal(32, 16, seed=1)}), tmp_path, "sound.onnx")
    np.savez("nan.npz", x=np.full((12, 1, 16), np.nan, np.float32))
    np.savez("inf.npz", x=np.full((12, 1, 16), np.inf, np.float32))
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("data", ["nan", "inf"])
@pytest.mark.parametrize(
    "words",
    [
        ("quantize", "sound.onnx", "-s", "w8a8", "-o", "out"),
        ("quantize", "sound.onnx", "-s", "w4a16", "-o", "out"),
        ("quantize", "sound.onnx", "-s", "w4a16", "--algorithm", "gptq", "-o", "out"),
        ("calibrate", "sound.onnx", "-s", "w8a8", "-o", "out"),
        ("calibrate", "sound.onnx", "--evidence", "out"),
    ],
    ids=" ".join,
)
def test_nothing_is_calibrated_on_samples_without_a_number(words: tuple[str, ...], data: str, folder: Path) -> None:
    words = tuple(f"out{'.onnx' if words[0] == 'quantize' else '.npz'}" if word == "out" else word for word in words)
    said = run(*words, "--data", f"{data}.npz", code=1)
    kind = {"nan": "NaN", "inf": "infinity"}[data]
    assert f"'{data}.npz': no sample holds a finite number: " in said and f"hold {kind} at input 'x'" in said
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize("words", ["quantize -s w8a8", "quantize -s w4a16", "calibrate -s w8a8", "calibrate"])
def test_calibration_tells_what_it_leaves_out(words: str) -> None:
    x = tiny.normal(12, 1, 16)
    x[0], x[11, 0, 3] = np.nan, np.inf
    output = ("--evidence" if words == "calibrate" else "-o", "out.onnx")
    np.savez("some.npz", x=x)
    with pytest.warns(UnusedOption, match=r"2 of 12 samples hold NaN and infinity at input 'x' \(samples 0, 11\)"):
        run(*words.split(), "sound.onnx", "--data", "some.npz", *output)
    x[0] = 1
    np.savez("some.npz", x=x)
    with pytest.warns(UnusedOption, match=r"1 of 12 samples holds infinity at input 'x' \(sample 11\)"):
        run(*words.split(), "sound.onnx", "--data", "some.npz", *output, "--force")


def test_masks_and_integers_lack_no_numbers() -> None:
    gaps, mask = Gaps(), np.where(np.tri(4) > 0, 0, -np.inf).astype(np.float32)
    gaps.look(0, {"mask": mask, "ids": np.arange(4)})
    assert not gaps.found and not gaps.is_all
    gaps.look(1, {"mask": mask - 1, "ids": np.arange(4)})
    assert gaps.found == {1: {"mask": ["infinity"]}}
    only_ids = Gaps()
    only_ids.look(0, {"ids": np.arange(4)})
    assert not only_ids.is_all

"""Samples that hold NaN or infinity are told where something follows from data; data without a number are refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from onnxq.cli import main
from onnxq.errors import UnusedOption
from onnxq.quality.gaps import Gaps
from onnxq.samples.gaps.words import in_words

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


TRIANGLE = np.where(np.tri(4) > 0, 0, -np.inf).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_masks_and_integers_lack_no_numbers(dtype: type) -> None:
    """Of causal attention, with and without biases of places; but not one that lets nothing be seen."""
    gaps, biased = Gaps(), TRIANGLE - np.abs(np.subtract.outer(np.arange(4), np.arange(4))) / 2
    for number, mask in enumerate((TRIANGLE, biased, TRIANGLE + 1)):
        gaps.look(number, {"mask": mask.astype(dtype), "x": np.ones(4, np.float32)})
    assert not gaps.found and not gaps.is_all and not in_words(gaps, 3)
    for number, x in enumerate((np.full(4, -np.inf), np.where(TRIANGLE < 0, np.inf, 0), [-np.inf, np.nan, 1]), 3):
        gaps.look(number, {"mask": np.array(x).astype(dtype), "x": np.ones(4, np.float32)})
    assert {number: found["mask"] for number, found in gaps.found.items()} == {
        3: ["infinity"],
        4: ["infinity"],
        5: ["NaN", "infinity"],
    }
    assert in_words(gaps, 6) == "3 of 6 samples hold NaN and infinity at input 'mask' (samples 3, 4, 5)"
    assert in_words(gaps, 9).startswith("3 of the 6 samples that were read here hold NaN")
    only_ids = Gaps()
    only_ids.look(0, {"ids": np.arange(4)})
    assert not only_ids.is_all


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_say_something_beside_floats_that_do_not(folder: Path, sign: int) -> None:
    """Limits that are none, of which nothing is said; one of -inf from above leaves nothing, which the check tells."""
    text = """g (int64[8] ids, float[1] limit) => (float[8, 8] y) {
        e = Gather(table, ids)  a = Min(e, limit)  [up] b = MatMul(a, w)  r = Relu(b)  [down] y = MatMul(r, v)
    }"""
    constants = {"table": tiny.normal(20, 16), "w": tiny.normal(16, 32), "v": tiny.normal(32, 8, seed=1)}
    tiny.save(tiny.model(text, constants), folder, "ids.onnx")
    ids = np.random.default_rng(0).integers(0, 20, (12, 8))
    np.savez("ids.npz", ids=ids, limit=np.full((12, 1), sign * np.inf, np.float32))
    said = run("quantize", "ids.onnx", "-s", "w8a8", "--data", "ids.npz", "-o", "out.onnx", code=0 if sign > 0 else 3)
    why = "no finite number at 'y' on these inputs: not compared; the samples hold infinity at input 'limit'"
    assert (why in said) == (sign < 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_why_nothing_says_anything_is_always_told(value: float) -> None:
    np.savez("none.npz", x=np.full((12, 1, 16), value, np.float32))
    said = run("quantize", "sound.onnx", "-s", "w8a8", "--data", "none.npz", "-o", "out.onnx", code=1)
    kind = "NaN" if np.isnan(value) else "infinity"
    assert f"no sample holds a finite number: 12 of 12 samples hold {kind} at input 'x' (samples 0, 1, 2, 3 and" in said


@pytest.mark.parametrize(
    ("behind", "value", "is_told"),
    [
        ("n = IsNaN(x)  i = Where(n, zero, x)", np.nan, False),
        ("s = Reshape(x, shape)  e = Equal(s, s)  i = Where(e, s, zero)", np.nan, False),
        ("n = IsInf(x)  i = Where(n, zero, x)", np.inf, False),
        ("i = Clip(x, zero)", -np.inf, False),
        ("n = IsInf(x)  i = Where(n, zero, x)", np.nan, True),
        ("i = Identity(x)", np.nan, True),
    ],
)
def test_what_a_model_puts_something_else_for_is_no_gap(folder: Path, behind: str, value: float, is_told: bool) -> None:
    text = TEXT.replace("{", "{ " + behind, 1).replace("MatMul(x", "MatMul(i")
    constants = {"w": tiny.normal(16, 32), "v": tiny.normal(32, 16, seed=1)}
    constants |= {"zero": np.zeros(1, np.float32), "shape": np.array([1, 16])}
    constants = {name: x for name, x in constants.items() if name in text}
    tiny.save(tiny.model(text, constants), folder, "mends.onnx")
    x = tiny.normal(12, 1, 16)
    x[:, 0, 3] = value
    np.savez("some.npz", x=x)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run("calibrate", "mends.onnx", "-s", "w8a8", "--data", "some.npz", "-o", "out.ranges")
    assert any("12 of 12 samples hold" in str(each.message) for each in told) == is_told


def test_processes_tell_what_they_met() -> None:
    """All samples are counted, of those that are held back as of those that another process read."""
    x = tiny.normal(24, 1, 16)
    x[3, 0, 0], x[7, 0, 0] = np.nan, np.inf
    np.savez("some.npz", x=x)
    words = ("calibrate", "sound.onnx", "-s", "w8a8", "--data", "some.npz", "-o", "out.ranges")
    with pytest.warns(UnusedOption, match=r"2 of 24 samples hold NaN and infinity at input 'x' \(samples 3, 7\)"):
        run(*words, "--jobs", "2")

"""Numbers that no integer stands for, NaN and infinities, in biases, masks and bounds: they stay what they are."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray

from onnxq import OnnxqError, Recipe, quantize, session
from onnxq.model.weights import fits_half
from onnxq.plan import load_plan

pytestmark = pytest.mark.usefixtures("quick")
PRODUCT = "g (float[1, 64] x) => (y) { [m] h = MatMul(x, w)  y = Add(h, bias) }"
GEMM = "g (float[1, 64] x) => (y) { [m] y = Gemm(x, w, bias) }"
IMAGES = """g (float[1, 8, 12, 12] x) => (y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, kernel, shift)  b = Clip(a, low, high)
    d = Conv <pads = [1, 1, 1, 1]> (b, other)  e = Add(b, d)  f = Clip(e, low, high)  y = Conv(f, kernel) }"""
MASKED = """g (float[1, 8, 64] x) => (float[1, 8, 64] y) {
    q = MatMul(x, w)  k = MatMul(x, v)  t = Transpose <perm = [0, 2, 1]> (k)  s = MatMul(q, t)
    m = Add(s, mask)  p = Softmax(m)  y = MatMul(p, x) }"""
CONSTANTS: dict[str, NDArray] = {
    "w": tiny.normal(64, 64),
    "v": tiny.normal(64, 64, seed=1),
    "bias": tiny.normal(64, seed=2),
    "kernel": tiny.normal(8, 8, 3, 3),
    "other": tiny.normal(8, 8, 3, 3, seed=1),
    "shift": tiny.normal(8, seed=2),
    "low": np.array(0, np.float32),
    "high": np.array(6, np.float32),
    "mask": np.triu(np.full((8, 8), -np.inf, np.float32), 1),
}
SLOW = Recipe("w8a8", keep_slow=True, min_sqnr=-np.inf)


def put(folder: Path, text: str, shape: tuple[int, ...], **changed: NDArray) -> tuple[Path, Path]:
    """A model and samples of it."""
    constants = {name: x for name, x in (CONSTANTS | changed).items() if f"{name})" in text or f"{name}," in text}
    np.savez(folder / "data.npz", x=np.random.default_rng(0).normal(size=(8, *shape)).astype(np.float32))
    return tiny.save(tiny.model(text, constants), folder), folder / "data.npz"


def outputs(path: Path, data: Path) -> NDArray:
    opened = session(path)
    with np.load(data) as arrays:
        return np.concatenate([opened.run(None, {"x": x})[0] for x in arrays["x"]])


def odd(name: str, number: float, at: int = 5) -> NDArray:
    x = CONSTANTS[name].copy()
    x.reshape(-1)[at] = number
    return x


@pytest.mark.parametrize("target", ["ort-cpu", "onnxq", "tensorrt", "qnn"])
@pytest.mark.parametrize("text", [PRODUCT, GEMM])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_bias_that_no_integer_holds_stays_what_it_is(text: str, number: float, target: str, tmp_path: Path) -> None:
    model, data = put(tmp_path, text, (1, 64), bias=odd("bias", number))
    done = quantize(model, tmp_path / "q.onnx", SLOW, target=target, data=data)
    wanted, got = outputs(model, data), outputs(done.output, data)
    np.testing.assert_array_equal(wanted[:, 5], got[:, 5])
    assert tiny.sqnr(np.delete(wanted, 5, 1), np.delete(got, 5, 1)) > 25
    if target != "tensorrt":  # whose biases are floats
        assert f"its bias holds {number}" in done.plan.choices["m"].reason


def test_a_plan_that_rounds_such_a_bias_is_refused(tmp_path: Path) -> None:
    model, data = put(tmp_path, PRODUCT, (1, 64), bias=odd("bias", -np.inf))
    choice = {"node": "m", "op": "MatMul", "method": "static", "format": "int8"}
    (tmp_path / "plan.json").write_text(json.dumps({"scheme": "w8a8", "target": "ort-cpu", "choices": [choice]}))
    plan = load_plan(tmp_path / "plan.json")
    with pytest.raises(OnnxqError, match="node 'm' cannot be static in int8: its bias holds -inf"):
        quantize(model, tmp_path / "q.onnx", SLOW, data=data, plan=plan)
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("bounds", [(np.nan, 6), (0, np.nan), (np.nan, np.nan), (-np.inf, np.inf)])
def test_a_bound_that_is_no_number_is_none(bounds: tuple[float, float], tmp_path: Path) -> None:
    given = dict(zip(("low", "high"), (np.array(bound, np.float32) for bound in bounds), strict=True))
    model, data = put(tmp_path, IMAGES, (1, 8, 12, 12), **given)
    for scheme in ("w8a8", "bf16"):
        recipe = Recipe(scheme, keep_slow=True, min_sqnr=-np.inf)
        done = quantize(model, tmp_path / f"{scheme}.onnx", recipe, target="onnxq", data=data)
        assert tiny.sqnr(outputs(model, data), outputs(done.output, data)) > 25


@pytest.mark.parametrize("target", ["qnn", "ort-cpu"])
def test_a_mask_of_infinities_is_added_in_float(target: str, tmp_path: Path) -> None:
    model, data = put(tmp_path, MASKED, (1, 8, 64))
    done = quantize(model, tmp_path / "q.onnx", SLOW, target=target, data=data)
    assert tiny.sqnr(outputs(model, data), outputs(done.output, data)) > 20


def test_what_is_wrong_with_a_weight_is_said_wherever_it_is_found(tmp_path: Path) -> None:
    """A pass that looks into it: what it raises comes to light as the cause of another exception."""
    text = (
        "g (float[1, 64] x) => (y, z) { f = Cast <to = 1> (w)  h = MatMul(x, f)  y = Add(h, bias)  z = MatMul(y, v) }"
    )
    half = odd("w", -np.inf).astype(ml_dtypes.bfloat16)
    model, data = put(tmp_path, text, (1, 64), w=half)
    with pytest.raises(OnnxqError, match="weight 'w_float' holds -inf at") as failed:
        quantize(model, tmp_path / "q.onnx", SLOW, target="onnxq", data=data)
    assert failed.value.exit_code == 1


def test_infinities_do_not_hide_what_float16_cannot_hold() -> None:
    def fits(*numbers: float) -> bool:
        return fits_half(ir.tensor(np.array(numbers, np.float32)))

    assert fits(np.inf, 1) and fits(np.nan, 1) and fits(np.nan) and fits()
    assert not fits(np.inf, 70000) and not fits(1, -70000, np.nan)

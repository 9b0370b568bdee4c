"""Cases of models that hold codes already: pairs of nodes around them that are odd, or in the way (`every.py`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import tiny
from attack.hostile import Hostile, save
from numpy.typing import NDArray

PAIRS = """g (float[1, 64] x) => (float[1, 64] y) {
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  w = DequantizeLinear(codes, s, none)
    h = MatMul(d, w)  r = Relu(h)  p = QuantizeLinear(r, s, z)  e = DequantizeLinear(p, s, z)  y = MatMul(e, w) }"""
BLOCKS = """g (float[1, 64] x) => (float[1, 64] y) {
    scales = DequantizeLinear<axis = 1>(steps, factors, zeros)
    w = DequantizeLinear<axis = AXIS, block_size = 16>(short, scales, level)  y = MatMul(x, w) }"""
ROUNDED = """g (float[1, 64] x) => (float[1, 64] y) {
    q = QuantizeLinear<output_dtype = TYPE>(x, s)  d = DequantizeLinear(q, s)  y = MatMul(d, floats) }"""
CONSTANTS: dict[str, NDArray] = {
    "s": np.array(0.1, np.float32),
    "z": np.array(128, np.uint8),
    "none": np.array(0, np.int8),
    "codes": np.arange(-60, 68).astype(np.int8)[:64].reshape(64, 1).repeat(64, 1),
    "floats": tiny.normal(64, 64),
    "steps": np.full((4, 64), 3, np.uint8),
    "factors": np.full(64, 0.1, np.float32),
    "zeros": np.zeros(64, np.uint8),
    "short": np.ones((64, 64), ml_dtypes.int4),
    "level": np.zeros((4, 64), ml_dtypes.int4),
}


def coded(text: str, opset: int = 21, **more: NDArray) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        constants = {name: x for name, x in (CONSTANTS | more).items() if f"{name})" in text or f"{name}," in text}
        save(tiny.model(text, constants, opset=opset), folder)
        np.savez(folder / "data.npz", x=tiny.normal(8, 64))
        in_float = "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, w) }"
        made = tiny.model(in_float, {"w": np.asarray(CONSTANTS["codes"] * 0.1, np.float32)})
        (folder / "float.onnx").write_bytes(made.SerializeToString())

    return make


AGAIN = ("quantize", "model.onnx", "--requantize", "--no-check", "-o", "out.onnx", "--data", "data.npz", "-t")
EMPTY = {"z": np.zeros(0, np.uint8)}
CASES = {
    **{
        f"pairs that are there already: {target} {scheme}": Hostile(coded(PAIRS), "", (*AGAIN, target, "-s", scheme), 0)
        for target, scheme in (("qnn", "w8a8"), ("qnn", "w4a16"), ("openvino", "w8a8"), ("ort-cpu", "w8a8"))
    },
    "zero points of nothing, looked at": Hostile(
        coded(PAIRS, **EMPTY), "", ("doctor", "model.onnx", "--data", "data.npz"), 0
    ),
    "zero points of nothing, reported": Hostile(
        coded(PAIRS, **EMPTY),
        "",
        ("report", "model.onnx", "--against", "float.onnx", "--data", "data.npz", "-o", "out.json"),
        0,
    ),
    "blocks along no axis": Hostile(
        coded(BLOCKS.replace("AXIS", "7")), "breaks its rules", ("check", "model.onnx", "--target", "qnn"), 1
    ),
    **{
        f"codes of no type: {target}": Hostile(
            coded(ROUNDED.replace("TYPE", "99"), 23), "", ("check", "model.onnx", "--target", target), 0
        )
        for target in ("qnn", "tensorrt")
    },
}

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
NARROW = """g (float[1, 64] x) => (y) {
    q = QuantizeLinear(x, SCALE, z)  d = DequantizeLinear(q, SCALE, z)  h = MatMul(d, floats)  NEXT }"""
#: What a model gives whose outputs are not of one size in all runs, or no tensors.
OUTPUTS = {
    "numbers that it has found": "m = Greater(h, s)  n = Reshape(m, flat)  y = Compress(h, n)",
    "a sequence": "y = SequenceConstruct(h, d)",
    "a sequence of different sizes": "c = Concat<axis = 0>(h, h)  y = SequenceConstruct(h, c)",
}
CONSTANTS: dict[str, NDArray] = {
    "s": np.array(0.1, np.float32),
    "z": np.array(128, np.uint8),
    "minus": np.array(-0.1, np.float32),
    "fine": np.array(0.001, np.float32),
    "flat": np.array([-1]),
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
        np.savez(folder / "data.npz", x=8 * tiny.normal(8, 64))
        np.savez(folder / "zeros.npz", x=np.zeros((8, 64), np.float32))
        in_float = "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, w) }"
        made = tiny.model(in_float, {"w": np.asarray(CONSTANTS["codes"] * 0.1, np.float32)})
        (folder / "float.onnx").write_bytes(made.SerializeToString())

    return make


def narrow(scale: str, what: str = "y = Relu(h)", unlike: bool = False) -> Callable[[Path], None]:
    """Samples do not fit into the range; `unlike`: codes are read without the zero point by which they were made."""
    text = NARROW.replace("SCALE", scale).replace("NEXT", what)
    return coded(text.replace(f"DequantizeLinear(q, {scale}, z)", f"DequantizeLinear(q, {scale})") if unlike else text)


LOOK = ("doctor", "model.onnx", "--data", "data.npz")
AGAIN = ("quantize", "model.onnx", "--requantize", "--no-check", "-o", "out.onnx", "--data", "data.npz", "-t")
EMPTY = {"z": np.zeros(0, np.uint8)}
CASES = {
    **{
        f"pairs that are there already: {target} {scheme}": Hostile(coded(PAIRS), "", (*AGAIN, target, "-s", scheme), 0)
        for target, scheme in (("qnn", "w8a8"), ("qnn", "w4a16"), ("openvino", "w8a8"), ("ort-cpu", "w8a8"))
    },
    "zero points of nothing, looked at": Hostile(coded(PAIRS, **EMPTY), "", LOOK, 0),
    "zero points of nothing, reported": Hostile(
        coded(PAIRS, **EMPTY),
        "",
        ("report", "model.onnx", "--against", "float.onnx", "--data", "data.npz", "-o", "out.json"),
        0,
    ),
    **{f"range too narrow of {what}": Hostile(narrow("fine", OUTPUTS[what]), "", LOOK, 4) for what in OUTPUTS},
    "range of a negative scale": Hostile(narrow("minus"), "", (*LOOK[:-1], "zeros.npz"), 5),
    "range whose codes are read otherwise": Hostile(narrow("fine", unlike=True), "", LOOK, 4),
    "blocks along no axis": Hostile(
        coded(BLOCKS.replace("AXIS", "7")), "breaks its rules", ("check", "model.onnx", "--target", "qnn"), 1
    ),
    **{
        f"block size of {size}": Hostile(
            coded(BLOCKS.replace("AXIS", "0").replace("16", str(size))), "", ("inspect", "model.onnx"), 0
        )
        for size in (1 << 18, 1 << 62)
    },
    **{
        f"codes of no type: {target}": Hostile(
            coded(ROUNDED.replace("TYPE", "99"), 23), "", ("check", "model.onnx", "--target", target), 0
        )
        for target in ("qnn", "tensorrt")
    },
}

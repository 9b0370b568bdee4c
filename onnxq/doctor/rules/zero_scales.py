"""Scales that divide by nothing, or are no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import constant_of
from onnxq.model import graph

#: Where operators read scales.
_SCALES = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QGemm": (1, 4, 7),
    "QLinearAdd": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
    "QLinearSigmoid": (1, 3),
    "QLinearLeakyRelu": (1, 3),
    "QLinearSoftmax": (1, 3),
    "QLinearGlobalAveragePool": (1, 3),
    "QLinearAveragePool": (1, 3),
    "QLinearConcat": (0,),
    "MatMulNBits": (2,),
    "Recurrent": (2, 4),
    "GatherBlockQuantized": (2,),
    "MatMulIntegerToFloat": (2, 3),
}


class ZeroScales(Rule):
    """A scale of 0, below 0, or that is no finite number. A channel of zeros alone may have the scale 0."""

    severity = Severity.ERROR
    what = "a scale is zero, negative, or no finite number"
    why = "all numbers become the same code, or none"
    fix = "calibrate it again; a value that is always zero takes any positive scale"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for node in patient.nodes:
            for index in _SCALES.get(node.op_type, ()):
                scale = constant_of(node, index)
                if scale is None:
                    continue
                x = scale.numpy().astype(np.float64)
                wrong = x[~_is_right(node, x)]
                if wrong.size:
                    value = node.inputs[index]
                    many = f", and {wrong.size - 1} more" if wrong.size > 1 else ""
                    yield self.at(
                        node.name or "", f"the scale '{value.name if value else ''}' is {wrong.flat[0]:g}{many}"
                    )


def _is_right(node: ir.Node, x: NDArray) -> NDArray[np.bool_]:
    """Of weights in blocks signs may be turned around, and blocks may be zero."""
    if node.op_type in ("MatMulNBits", "Recurrent", "GatherBlockQuantized") or (
        node.op_type == "DequantizeLinear" and x.ndim > 1
    ):
        return np.isfinite(x)
    if node.op_type == "DequantizeLinear" and constant_of(node, 0) is not None:
        return np.isfinite(x) & ((x > 0) | _is_nothing(node, x))
    return np.isfinite(x) & (x > 0)


def _is_nothing(node: ir.Node, x: NDArray) -> NDArray[np.bool_]:
    """Which channels of a stored weight are zeros anyway."""
    codes, zero = constant_of(node, 0), constant_of(node, 2)
    assert codes is not None
    w = codes.numpy().astype(np.int64)
    if x.size == 1 or w.ndim == 0:
        level = 0 if zero is None or not zero.size else int(zero.numpy().reshape(-1)[0])
        return np.full(x.shape, bool((w == level).all()))
    axis = graph.attribute_int(node, "axis", 1)
    axis = axis + w.ndim if axis < 0 else axis
    if not 0 <= axis < w.ndim or w.shape[axis] != x.size or (zero is not None and zero.size not in (1, x.size)):
        return np.zeros(x.shape, bool)  # no such channels: it does not open
    rows = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
    levels = np.zeros((1, 1)) if zero is None else zero.numpy().astype(np.int64).reshape(-1, 1)
    return np.asarray((rows == levels).all(axis=1)).reshape(x.shape)

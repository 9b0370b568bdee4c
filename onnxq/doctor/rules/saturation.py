"""Products of uint8 and int8 whose sums of two do not fit into 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import code_type, dequantizer
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import StoredWeight
from onnxq.model import graph

#: Instructions that add four products in 32 bits.
_WIDE = {"avx_vnni", "avx512_vnni", "avx_vnni_int8", "amx_int8"}
_LARGEST, _MOST, _LEAST = 255, (1 << 15) - 1, -(1 << 15)


class Saturation(Rule):
    """On x86 processors without VNNI, int8 kernels add two products of neighbours along K in 16 bits, and cut off what
    does not fit (vpmaddubsw). Whether that can happen follows from the weights: activations are any of 0 to 255.
    """

    severity = Severity.WARNING
    what = "sums of two products of uint8 and int8 do not fit into 16 bits"
    why = "x86 processors without VNNI cut them off: results differ from machine to machine"
    fix = "quantize weights to 7 bits (--reduce-range) where the model is to run on such processors"

    def find(self, patient: Patient) -> Iterator[Finding]:
        words = patient.machine.isa.split()
        is_here = words[:1] in (["x86_64"], ["AMD64"]) and not _WIDE.intersection(words)
        for weight in patient.weights:
            if weight.codes.dtype != ir.DataType.INT8 or not weight.codes.size or not _reads_uint8(weight):
                continue
            found = pairs(weight)
            low, high = _LARGEST * np.minimum(found, 0).sum(-1), _LARGEST * np.maximum(found, 0).sum(-1)
            cut = int(((high > _MOST) | (low < _LEAST)).sum())
            if cut:
                largest = max(int(high.max()), -int(low.min()))
                where = "here" if is_here else "on processors without VNNI (not here)"
                yield self.at(
                    weight.place,
                    f"{cut} of {low.size} pairs of weights in '{weight.value.name}' can add up to {largest}, cut at "
                    f"{_MOST} {where}",
                    severity=self.severity if is_here else Severity.NOTE,
                )


def pairs(weight: StoredWeight) -> NDArray[np.int32]:
    """[pairs, 2]: neighbours along what is summed over; of a convolution channels, then the places of its kernel."""
    w = np.moveaxis(weight.codes.numpy(), weight.contraction[0], -1).astype(np.int32)
    w = w.reshape(w.shape[0], -1) if len(weight.contraction) > 1 else w.reshape(-1, w.shape[-1])
    if w.shape[-1] % 2:
        w = np.pad(w, ((0, 0), (0, 1)))
    return w.reshape(-1, 2)


def _reads_uint8(weight: StoredWeight) -> bool:
    """Whether what the weight is multiplied by are codes of uint8."""
    node, value = weight.node, weight.activation
    if weight.dequantize is not None:
        between = dequantizer(value)
        return between is not None and code_type(between) == ir.DataType.UINT8
    if node.op_type == "DynamicQuantizeMatMul":
        return True
    before = graph.producer(value)
    if before is not None and graph.is_op(before, "DynamicQuantizeLinear"):
        return True
    zero = {"MatMulInteger": 2, "ConvInteger": 2, "MatMulIntegerToFloat": 4}.get(node.op_type, 2)
    tensor = graph.constant(node.inputs[zero]) if zero < len(node.inputs) else None
    return tensor is not None and tensor.dtype == ir.DataType.UINT8

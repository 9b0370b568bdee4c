"""A bias in codes whose scale is not that of the sums it is added to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import dequantizer, relative_error
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import constant_of, stored_weights
from onnxq.model import graph

#: Scales that differ by less are the same, computed in another order.
TOLERANCE = 1e-3


class BiasScale(Rule):
    """Integer kernels add the codes of a bias to sums of products of codes. So its scale has to be that of the
    activation times those of the weight; onnxruntime takes the float kernel where it is another one, without a word.

    Mended by the codes of that scale.
    """

    severity = Severity.WARNING
    what = "the scale of a bias is not that of the activation times that of the weight"
    why = "integer kernels add its codes to sums of products of codes; onnxruntime computes in float instead"
    fix = "give the bias the scale s(x)·s(w), with codes to match; --fix does"
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        for bias in _biases(patient.model):
            off = relative_error(bias.scale, bias.wanted)
            what = f"the scale of bias '{bias.value.name}' is off by up to {off:.1%} of s(x)·s(w)"
            yield self.at(bias.node.name or "", what)

    def mend(self, model: ir.Model) -> bool:
        names, mended = graph.Names(model), False
        for bias in list(_biases(model)):
            codes = np.rint(bias.codes.astype(np.float64) * bias.scale / bias.wanted)
            owner = bias.dequantize.graph
            if np.abs(codes).max(initial=0) >= 1 << 31 or not isinstance(owner, ir.Graph):
                continue
            name = bias.dequantize.name or bias.value.name or "bias"
            parts = [codes.astype(np.int32), bias.wanted.astype(np.float32), np.zeros(bias.wanted.shape, np.int32)]
            if bias.wanted.size == 1:
                parts[1:] = [part.reshape(()) for part in parts[1:]]
            inputs = [
                graph.add_constant(owner, names.fresh(f"{name}_{word}"), ir.tensor(part))
                for word, part in zip(("codes", "scale", "zero"), parts, strict=True)
            ]
            before = bias.dequantize
            fresh = names.fresh(f"{name}_scaled")
            y = graph.add_node(bias.node, "DequantizeLinear", inputs, fresh, names.fresh(f"{fresh}_out"), {"axis": 0})
            bias.node.replace_input_with(2, y)
            if not before.outputs[0].uses() and not before.outputs[0].is_graph_output():
                owner.remove(before, safe=True)
            mended = True
        return mended


@dataclass(frozen=True)
class _Bias:
    """One whose scale is wrong; `scale` and `wanted` are of one shape."""

    node: ir.Node
    value: ir.Value
    dequantize: ir.Node
    codes: NDArray
    scale: NDArray
    wanted: NDArray


def _biases(model: ir.Model) -> Iterator[_Bias]:
    for weight in stored_weights(model):
        node, x = weight.node, dequantizer(weight.activation)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        between = graph.producer(bias)
        if x is None or between is None or not graph.is_op(between, "DequantizeLinear") or weight.scales is None:
            continue
        scale_x, codes, scale = constant_of(x, 1), constant_of(between, 0), constant_of(between, 1)
        if scale_x is None or scale_x.size != 1 or codes is None or scale is None or codes.dtype != ir.DataType.INT32:
            continue
        wanted = np.reshape(scale_x.numpy().astype(np.float64) * weight.scales.numpy().astype(np.float64), -1)
        if node.op_type == "Gemm":
            wanted = wanted / (graph.attribute_float(node, "beta", 1.0) or 1.0)
        given = scale.numpy().astype(np.float64).reshape(-1)
        size = max(given.size, wanted.size)
        if size not in (1, codes.size) or weight.block:
            continue
        given, wanted = np.broadcast_to(given, size), np.broadcast_to(wanted, size)
        source = between.inputs[0]
        if source is not None and relative_error(given, wanted) > TOLERANCE:
            yield _Bias(node, source, between, codes.numpy().reshape(-1), given, wanted)

"""Scales along the axis that a product sums over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import dequantizer
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import StoredWeight, stored_weights
from onnxq.model import graph


class AxisOnK(Rule):
    """A fused kernel multiplies sums by one scale a column; scales of rows have no place in it. onnxruntime fuses it
    all the same: silently wrong where there are as many rows as columns, and a failure when it runs elsewhere.

    Mended by Cast, Sub and Mul in the place of DequantizeLinear: the same weight, which nothing fuses.
    """

    severity = Severity.ERROR
    what = "scales of channels lie along the axis that is summed over"
    why = "integer kernels multiply sums by one scale a column: onnxruntime takes the scales of rows for those"
    fix = "quantize it again with scales along the outputs (axis 1 of [K, N]), or use --fix, which leaves it unfused"
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        for weight in filter(_is_wrong, patient.weights):
            fused = dequantizer(weight.activation) is not None
            what = "onnxruntime fuses it and gives wrong results" if fused else "no integer kernel can take that"
            axis, size = weight.channel, weight.codes.shape.numpy()[weight.channel or 0]
            message = f"'{weight.value.name}' has {size} scales along axis {axis}, which is summed over: {what}"
            yield self.at(weight.place, message, severity=Severity.ERROR if fused else Severity.WARNING)

    def mend(self, model: ir.Model) -> bool:
        mended = {id(each.dequantize): each for each in stored_weights(model) if _is_wrong(each)}
        names = graph.Names(model)
        for weight in mended.values():
            _write_out(weight, names)
        return bool(mended)


def _is_wrong(weight: StoredWeight) -> bool:
    if weight.channel is None or weight.block or weight.dequantize is None:
        return False
    return weight.channel in weight.contraction and weight.codes.shape.numpy()[weight.channel] > 1


def _write_out(weight: StoredWeight, names: graph.Names) -> None:
    """Cast, Sub and Mul do what the DequantizeLinear does."""
    node = weight.dequantize
    assert node is not None and weight.scales is not None and isinstance(node.graph, ir.Graph)
    shape = [1] * len(weight.codes.shape)
    shape[weight.channel or 0] = -1
    dtype, name = weight.scales.dtype, node.name or node.outputs[0].name or "weight"

    def constant(x: NDArray, word: str) -> ir.Value:
        fresh = names.fresh(f"{name}_{word}")
        assert isinstance(node.graph, ir.Graph)
        return graph.add_constant(node.graph, fresh, ir.tensor(np.ascontiguousarray(x.reshape(shape))))

    def add(op: str, inputs: list[ir.Value | None], **attributes: int) -> ir.Value:
        fresh = names.fresh(f"{name}_{op.lower()}")
        return graph.add_node(node, op, inputs, fresh, fresh, attributes)

    y = add("Cast", [weight.value], to=int(dtype))
    if weight.zeros is not None and weight.zeros.numpy().any():
        y = add("Sub", [y, constant(weight.zeros.numpy().astype(dtype.numpy()), "zeros")])
    y = add("Mul", [y, constant(weight.scales.numpy(), "scales")])
    graph.replace_value(node.outputs[0], y)
    node.graph.remove(node, safe=True)

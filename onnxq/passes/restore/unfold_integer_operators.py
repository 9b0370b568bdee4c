"""Operators on codes, QLinearConv and its like, become operators on floats between DequantizeLinear and QuantizeLinear.

Sources: the ONNX operators' definitions, and onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.passes.restore._restored import Restored, RestorePass, array_of, input_of, replace


@dataclass(frozen=True)
class _Spelling:
    """Where an operator on codes reads what.

    Attributes:
        op: the operator on floats.
        reads: where each of its inputs is; scale and zero point come behind it.
        made: where the scale of the result is, and behind it the zero point.
        bias: where an int32 bias is, counted in products of the scales of the first two inputs.
        weight_axis: of the second input, along which its scales lie if there are several.
    """

    op: str
    reads: tuple[int, ...]
    made: int
    bias: int | None = None
    weight_axis: int = 0


_TWO, _ONE = (0, 3), (0,)
_SPELLINGS = {
    ("", "QLinearConv"): _Spelling("Conv", _TWO, 6, bias=8),
    ("", "QLinearMatMul"): _Spelling("MatMul", _TWO, 6, weight_axis=-1),
    (graph.MICROSOFT, "QGemm"): _Spelling("Gemm", _TWO, 7, bias=6, weight_axis=1),
    (graph.MICROSOFT, "QLinearAdd"): _Spelling("Add", _TWO, 6),
    (graph.MICROSOFT, "QLinearMul"): _Spelling("Mul", _TWO, 6),
    (graph.MICROSOFT, "QLinearSigmoid"): _Spelling("Sigmoid", _ONE, 3),
    (graph.MICROSOFT, "QLinearLeakyRelu"): _Spelling("LeakyRelu", _ONE, 3),
    (graph.MICROSOFT, "QLinearGlobalAveragePool"): _Spelling("GlobalAveragePool", _ONE, 3),
    (graph.MICROSOFT, "QLinearAveragePool"): _Spelling("AveragePool", _ONE, 3),
    (graph.MICROSOFT, "QLinearSoftmax"): _Spelling("Softmax", _ONE, 3),
}
#: Attributes of the operators on codes that those on floats do not have.
_THEIR_OWN = ("channels_last", "opset")


class UnfoldIntegerOperators(RestorePass):
    """See above. What floats have no spelling for stays as it is: channels last, biases whose scales are computed,
    scales of each of several matrices, a Softmax over more than one axis.
    """

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if node.op_type == "QLinearConcat" and node.domain == graph.MICROSOFT:
            return _concat(node, restored)
        spelling = _SPELLINGS.get((node.domain, node.op_type))
        if spelling is None or graph.attribute_int(node, "channels_last", 0):
            return False
        if _is_old_softmax(node) or any(_rank(node, first + 1) > 1 for first in spelling.reads):
            return False
        bias = None
        if spelling.bias is not None and input_of(node, spelling.bias) is not None:
            bias = _bias(node, spelling, restored)
            if bias is None:
                return False
        axes = (0, _weight_axis(node, spelling))
        inputs = [_floats(node, first, axis, restored) for first, axis in zip(spelling.reads, axes, strict=False)]
        attributes = {a.name: a for a in node.attributes.values() if a.name not in _THEIR_OWN}
        if bias is not None:
            inputs.append(bias)
        _finish(node, spelling.op, inputs, attributes, spelling.made, restored)
        return True


def _is_old_softmax(node: ir.Node) -> bool:
    """Whether it is over more than one axis, as it was before opset 13."""
    is_old = node.op_type == "QLinearSoftmax" and graph.attribute_int(node, "opset", 0) < 13
    return is_old and graph.attribute_int(node, "axis", -1) != -1


def _rank(node: ir.Node, index: int) -> int:
    """Of a constant that a node reads there; 0 where there is none."""
    tensor = graph.constant(input_of(node, index))
    return 0 if tensor is None else len(tensor.shape)


def _weight_axis(node: ir.Node, spelling: _Spelling) -> int:
    """Along which the scales of the second input lie, if it has several."""
    is_turned = node.op_type == "QGemm" and graph.attribute_int(node, "transB", 0)
    return 0 if is_turned else spelling.weight_axis


def _concat(node: ir.Node, restored: Restored) -> bool:
    inputs = [_floats(node, first, 0, restored) for first in range(2, len(node.inputs), 3)]
    _finish(node, "Concat", inputs, dict(node.attributes), 0, restored)
    return True


def _floats(node: ir.Node, first: int, axis: int, restored: Restored) -> ir.Value:
    """What the codes at input `first` stand for."""
    name = restored.names.fresh(f"{node.name}_float_{first}")
    inputs = [value for value in (input_of(node, first + i) for i in range(3)) if value is not None]
    return graph.add_node(node, "DequantizeLinear", inputs, name, restored.names.fresh(f"{name}_out"), {"axis": axis})


def _finish(
    node: ir.Node,
    op: str,
    inputs: list[ir.Value],
    attributes: dict[str, ir.Attr],
    made: int,
    restored: Restored,
) -> None:
    name, node.name = node.name or "", restored.names.fresh(f"{node.name}_quantized")
    y = graph.add_node(node, op, inputs, name, restored.names.fresh(f"{name}_out"))
    producer = y.producer()
    assert producer is not None
    producer.attributes.update(attributes)
    if input_of(node, made) is not None:
        rounded = restored.names.fresh(f"{name}_codes")
        parts = [value for value in (input_of(node, made), input_of(node, made + 1)) if value is not None]
        y = graph.add_node(node, "QuantizeLinear", [y, *parts], rounded, rounded)
    replace(node, y)


def _bias(node: ir.Node, spelling: _Spelling, restored: Restored) -> ir.Value | None:
    """The bias in floats, where it and its scales are constant."""
    assert spelling.bias is not None
    source = input_of(node, spelling.bias)
    codes, *scales = (graph.constant(input_of(node, i)) for i in (spelling.bias, *(i + 1 for i in spelling.reads)))
    if source is None or codes is None or None in scales:
        return None

    # Of QGemm the sums, the bias among them, are multiplied by alpha; of Gemm the product alone.
    alpha = np.float32(node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1)

    def evaluate() -> NDArray:
        x, w = (array_of(scale) for scale in scales)
        assert x is not None and w is not None
        return codes.numpy().astype(np.float32) * (x.reshape(-1) * w.reshape(-1) * alpha).astype(np.float32)

    return restored.floats(node, source, evaluate, tuple(codes.shape.numpy()), ir.DataType.FLOAT)

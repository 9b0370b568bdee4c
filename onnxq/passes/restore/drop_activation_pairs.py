"""Activations that were rounded to codes and back are what they were before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.passes.restore._restored import Restored, RestorePass, array_of, input_of

#: Operators whose results are not below zero, and do not need to be cut off there again.
_NOT_NEGATIVE = ("Relu", "Sigmoid", "Softmax", "Abs", "HardSigmoid", "Exp", "Sqrt", "Clip", "ReduceL2")


class DropActivationPairs(RestorePass):
    """DequantizeLinear of QuantizeLinear with the same scale is nothing, but for what it cuts off.

    Quantizers leave out a Relu or Clip where the range of the codes does the same. So if zero is the lowest code, a
    Clip to the range of the codes takes the place of the pair, unless what is rounded cannot be negative.
    """

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        quantize = None if node.op_type != "DequantizeLinear" else _producer(node.inputs[0])
        if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
            return False
        if not all(_are_equal(input_of(node, i), input_of(quantize, i)) for i in (1, 2)):
            return False
        x, y = quantize.inputs[0], node.outputs[0]
        bounds = _bounds(quantize)
        if bounds is not None and not graph.is_op(_producer(x), *_NOT_NEGATIVE):
            assert isinstance(node.graph, ir.Graph)
            limits = [
                graph.add_constant(node.graph, restored.names.fresh(f"{y.name}_{word}"), ir.tensor(bound))
                for word, bound in zip(("low", "high"), bounds, strict=True)
            ]
            name = restored.names.fresh(f"{node.name}_range")
            x = graph.add_node(node, "Clip", [x, *limits], name, restored.names.fresh(f"{y.name}_range"))
        if y.is_graph_output():
            if x.is_graph_input() or x.is_initializer() or x.is_graph_output():
                name = restored.names.fresh(f"{node.name}_same")
                x = graph.add_node(node, "Identity", [x], name, restored.names.fresh(f"{y.name}_same"))
            graph.replace_value(y, x)
        else:
            y.replace_all_uses_with(x)
        return True


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _are_equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    if a is b:
        return True
    first, second = array_of(graph.constant(a)), array_of(graph.constant(b))
    if first is None or second is None:
        return False
    return first.dtype == second.dtype and np.array_equal(first.reshape(-1), second.reshape(-1))


def _bounds(quantize: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """The range of the codes, where zero is the lowest of one scale's."""
    scale, zero = array_of(graph.constant(input_of(quantize, 1))), array_of(graph.constant(input_of(quantize, 2)))
    if scale is None or scale.size != 1 or scale.dtype.kind != "f":
        return None
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    if kind.kind not in "iu" or (zero is not None and zero.item() != np.iinfo(kind).min):
        return None
    reach = np.float64(scale.item()) * (int(np.iinfo(kind).max) - int(np.iinfo(kind).min))
    return np.zeros((), scale.dtype), np.asarray(reach, scale.dtype)

"""Activations that were rounded to codes and back are what they were before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.passes.restore._restored import Restored, RestorePass, array_of, input_of, read_instead

#: Operators whose results are not below zero, and do not need to be cut off there again.
_NOT_NEGATIVE = ("Relu", "Sigmoid", "Softmax", "Abs", "HardSigmoid", "Exp", "Sqrt", "ReduceL2")
#: Operators that move numbers and choose among them, of codes as of floats.
_MOVING = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Identity", "Expand", "Tile")


class DropActivationPairs(RestorePass):
    """DequantizeLinear of QuantizeLinear with the same scale is nothing, but for what it cuts off.

    1. Between the two there may be operators that only move numbers, which then move floats.
    2. Quantizers leave out a Relu or Clip where the range of the codes does the same. So if zero is the lowest code, a
       Clip to the range of the codes takes the place of the pair, unless what is rounded cannot be negative.
    3. Of a constant it is no activation: a weight is what its codes stand for, also where a file has it in floats.
    """

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if node.op_type != "QuantizeLinear" or node.inputs[0] is None or _is_known(node.inputs[0]):
            return False
        ends, moving = _ends(node, node.outputs[0])
        if ends is None:  # somebody computes with the codes; who makes floats of them at once need not
            found = [use.node for use in node.outputs[0].uses()]
            ends, moving = [end for end in found if _is_inverse(end, node)], []
        scale = graph.constant(input_of(node, 1))
        if not ends or (moving and (scale is None or scale.size != 1)):  # scales of channels would have to move too
            return False
        x = _in_range(node, restored)
        for each in moving:
            each.outputs[0].type = None
            if each.inputs[0] is node.outputs[0]:
                each.replace_input_with(0, x)
        for end in ends:
            y = x if end.inputs[0] is node.outputs[0] else end.inputs[0]
            assert y is not None
            read_instead(end, y, restored)
        return True


def _ends(quantize: ir.Node, codes: ir.Value) -> tuple[list[ir.Node] | None, list[ir.Node]]:
    """The nodes that make floats of codes again, and those that only move them before; None if not all readers do."""
    ends: list[ir.Node] = []
    moving: list[ir.Node] = []
    for use in codes.uses():
        if _is_inverse(use.node, quantize) and use.idx == 0:
            ends.append(use.node)
        elif graph.is_op(use.node, *_MOVING) and use.idx == 0 and len(use.node.outputs) == 1:
            behind, others = _ends(quantize, use.node.outputs[0])
            if behind is None:
                return None, []
            ends += behind
            moving += [use.node, *others]
        else:
            return None, []
    return (None if codes.is_graph_output() else ends), moving


def _is_inverse(node: ir.Node, quantize: ir.Node) -> bool:
    same = all(_are_equal(input_of(node, i), input_of(quantize, i)) for i in (1, 2))
    return node.op_type == "DequantizeLinear" and same


def _in_range(quantize: ir.Node, restored: Restored) -> ir.Value:
    """What is rounded, cut off where the codes may do the work of an operator that is not there."""
    x, bounds = quantize.inputs[0], _bounds(quantize)
    assert x is not None
    if bounds is None or _is_not_negative(graph.producer(x)):
        return x
    owner, name = quantize.graph, restored.names.fresh(f"{quantize.name}_range")
    assert isinstance(owner, ir.Graph)
    limits = [graph.add_constant(owner, restored.names.fresh(name), ir.tensor(bound)) for bound in bounds]
    return graph.add_node(quantize, "Clip", [x, *limits], name, restored.names.fresh(f"{name}_out"))


def _is_not_negative(node: ir.Node | None) -> bool:
    if not graph.is_op(node, "Clip") or node is None:
        return graph.is_op(node, *_NOT_NEGATIVE)
    lowest = array_of(graph.constant(input_of(node, 1)))
    return bool(graph.attribute_float(node, "min", -np.inf) >= 0 or (lowest is not None and (lowest >= 0).all()))


def _is_known(value: ir.Value, depth: int = 8) -> bool:
    """Whether a value is a constant, or computed from constants alone by no more than `depth` nodes in a row."""
    node = value.producer()
    if node is None:
        return graph.constant(value) is not None
    is_plain = depth > 0 and bool(node.inputs) and not graph.has_body(node)
    return is_plain and all(x is None or _is_known(x, depth - 1) for x in node.inputs)


def _are_equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    if a is b:
        return True
    first, second = (array_of(graph.constant(value)) for value in (a, b))
    if first is None or second is None:
        return False
    return first.dtype == second.dtype and np.array_equal(first.reshape(-1), second.reshape(-1))


def _bounds(quantize: ir.Node) -> tuple[NDArray, NDArray] | None:
    """The range of the codes, where zero is the lowest of one scale's."""
    scale, zero = (array_of(graph.constant(input_of(quantize, i))) for i in (1, 2))
    if scale is None or scale.size != 1 or scale.dtype.kind != "f":
        return None
    named = ir.DataType(graph.attribute_int(quantize, "output_dtype", 0) or int(ir.DataType.UINT8))
    kind = named.numpy() if zero is None else zero.dtype
    if kind.kind not in "iu" or (0 if zero is None else int(zero.item())) != np.iinfo(kind).min:
        return None
    reach = float(scale.item()) * (int(np.iinfo(kind).max) - int(np.iinfo(kind).min))
    return np.zeros((), scale.dtype), np.asarray(reach, scale.dtype)

"""Softmax over the last axis is one node again, where ONNX's converter wrote four because it did not know the rank."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph

#: Below opset 13 these flatten what they read to a matrix, which no later version does.
_FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")
#: Operators whose output has the rank of their first input, and those that have the highest rank of all inputs.
_LIKE_FIRST = (
    *("Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Erf", "Clip", "Sqrt", "Exp", "Log"),
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "BatchNormalization", "LayerNormalization", "Identity"),
    *("Softmax", "LogSoftmax", "Cast", "Concat", "Slice", "Split", "Pad", "Dropout"),
)
_LIKE_HIGHEST = ("Add", "Sub", "Mul", "Div", "Pow", "Where", "Max", "Min")
#: How many nodes are looked at before the rank counts as unknown.
_FAR = 64


class WholeSoftmax(ir.passes.InPlacePass):
    """Reshape(Softmax(Flatten<axis = k>(x), axis = -1), Shape(x)) becomes Softmax(x, axis = k).

    1. Only where x has k + 1 axes, which the graph says: of x or of the output, or by operators that keep ranks, back
       to one with a rank of its own (a Transpose, a Reshape to a constant shape).
    2. LogSoftmax and Hardmax are written so too.

    Where(IsNaN(p), 0, p) behind p = Softmax(scores + mask), torch's guard for rows that −∞ hides wholly, becomes p
    where no constant of the mask is infinite: of finite scores no row is without a number then.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(graph.nodes(model)):
            if graph.is_op(node, "Reshape") and len(node.inputs) == 2:
                modified |= _joined(node)
            elif graph.is_op(node, "Where") and _guards_in_vain(node):
                _take_out(node)
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _joined(reshape: ir.Node) -> bool:
    middle, shape = (graph.producer(value) for value in reshape.inputs)
    if middle is None or shape is None or not (graph.is_op(middle, *_FLATTENING) and graph.is_op(shape, "Shape")):
        return False
    flatten = graph.producer(middle.inputs[0])
    if flatten is None or not graph.is_op(flatten, "Flatten") or shape.attributes:
        return False
    x, axis = flatten.inputs[0], graph.attribute_int(flatten, "axis", 1)
    last, out = graph.attribute_int(middle, "axis", -1), reshape.outputs[0]
    if x is None or x is not shape.inputs[0] or last not in (-1, 1) or axis < 0 or axis + 1 != _rank(x, out):
        return False
    if len(middle.outputs[0].uses()) != 1 or middle.outputs[0].is_graph_output():
        return False
    middle.replace_input_with(0, x)
    middle.attributes["axis"] = ir.AttrInt64("axis", axis)
    made = middle.outputs[0]
    made.name, made.type, made.shape, out.name = out.name, out.type, out.shape, None
    out.replace_all_uses_with(made, replace_graph_outputs=True)
    assert reshape.graph is not None
    reshape.graph.remove(reshape, safe=True)
    return True


def _guards_in_vain(where: ir.Node) -> bool:
    test, zero, p = (*where.inputs, None, None, None)[:3]
    guard, softmax = (graph.producer(value) for value in (test, p))
    if (
        p is None
        or guard is None
        or softmax is None
        or not (graph.is_op(guard, "IsNaN") and graph.is_op(softmax, "Softmax"))
    ):
        return False
    number, readers = graph.constant(zero), {use.node for use in p.uses()}
    is_zero = number is not None and number.size == 1 and not np.any(number.numpy()) and len(number.shape) <= 1
    is_own = guard.inputs[0] is p and readers == {guard, where} and graph.only_consumer(guard.outputs[0]) is where
    is_inside = not (p.is_graph_output() or where.outputs[0].is_graph_output())
    return is_zero and is_own and is_inside and _is_finite(softmax.inputs[0])


def _take_out(where: ir.Node) -> None:
    test, _, p = where.inputs
    guard = graph.producer(test)
    assert p is not None and guard is not None and where.graph is not None
    where.outputs[0].replace_all_uses_with(p, replace_graph_outputs=True)
    where.graph.remove([where, guard], safe=True)


def _is_finite(scores: ir.Value | None) -> bool:
    """Whether no constant makes it infinite that is added, multiplied or chosen behind products."""
    node = graph.producer(scores)
    if node is None:
        tensor = graph.constant(scores)
        return tensor is not None and tensor.dtype in graph.FLOATS and bool(np.all(np.isfinite(tensor.numpy())))
    if graph.is_op(node, "Add", "Where"):
        return all(map(_is_finite, node.inputs[node.op_type == "Where" :]))
    if graph.is_op(node, "Mul", "Div"):
        return all(_is_finite(value) for value in node.inputs if graph.constant(value) is not None)
    return graph.is_op(node, "MatMul")


def _rank(x: ir.Value, out: ir.Value) -> int | None:
    return len(out.shape) if out.shape is not None else _rank_of(x, [_FAR])


def _rank_of(x: ir.Value | None, left: list[int]) -> int | None:
    """Number of axes of `x`, None where the graph does not say it; `left` counts down what may still be looked at."""
    left[0] -= 1
    if x is None or left[0] < 0:
        return None
    if x.shape is not None:
        return len(x.shape)
    if (tensor := graph.constant(x)) is not None:
        return len(tensor.shape)
    node = x.producer()
    if node is None or node.domain != "" or (x is not node.outputs[0] and node.op_type != "Split"):
        return None
    if node.op_type == "Transpose" and "perm" in node.attributes:
        return len(node.attributes["perm"].as_ints())
    if node.op_type == "Reshape":
        shape = graph.constant(node.inputs[1])
        return None if shape is None else int(shape.size)
    if node.op_type in _LIKE_FIRST:
        return _rank_of(node.inputs[0], left)
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes, rank = _axes_of(node), _rank_of(node.inputs[0], left)
        return None if not axes or rank is None else rank + (axes if node.op_type == "Unsqueeze" else -axes)
    if node.op_type in (*_LIKE_HIGHEST, "MatMul"):
        ranks = [_rank_of(value, left) for value in node.inputs]
        known = [rank for rank in ranks if rank is not None]
        if len(known) < len(ranks) or (node.op_type == "MatMul" and min(known) < 2):
            return None
        return max(known)
    return None


def _axes_of(node: ir.Node) -> int:
    """How many axes a Squeeze or Unsqueeze names; 0 where it names none, or not as constants."""
    if "axes" in node.attributes:
        return len(node.attributes["axes"].as_ints())
    axes = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return 0 if axes is None else int(axes.size)

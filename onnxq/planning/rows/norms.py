"""Normalizations that regions have a step for: of the channels of images, and of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.attention import number_of
from onnxq.planning.rows.squares import square_of


def has_constants(node: ir.Node) -> bool:
    """Whether an InstanceNormalization has a constant factor and summand for each channel, all of them finite."""
    tensors = [graph.constant(value) for value in node.inputs[1:3]]
    sizes = {tensor.size for tensor in tensors if tensor is not None and tensor.dtype is ir.DataType.FLOAT}
    is_plain = len(tensors) == 2 and None not in tensors and len(sizes) == 1 and 0 not in sizes
    return is_plain and all(np.isfinite(tensor.numpy()).all() for tensor in tensors if tensor is not None)


@dataclass(frozen=True)
class RowNorm:
    """(x − mean) / √(mean of squares of that + epsilon) · weight + bias along the last axis, in one node or in several.

    Attributes:
        nodes: in order; the last one makes the value.
        weight, bias: constant vectors, or None.
        centred: whether the mean is taken off.
    """

    x: ir.Value
    nodes: tuple[ir.Node, ...]
    weight: ir.Value | None
    bias: ir.Value | None
    epsilon: float
    centred: bool

    @property
    def made(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


def row_norm_at(node: ir.Node, rank: int | None) -> RowNorm | None:
    """The normalization that `node` is, or whose mean of squares it computes.

    1. LayerNormalization, RMSNormalization and what onnxruntime calls SimplifiedLayerNormalization, of one axis.
    2. Spelled: ReduceMean, Sub, Pow or Mul, ReduceMean, Add, Sqrt, Div; the mean may be left out. In the place of Div a
       Mul with the reciprocal; behind it a Mul and an Add of vectors. Nobody else reads what lies between.

    Args:
        rank: of what is normalized.
    """
    if rank is None:
        return None
    if graph.is_op(node, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        return _whole(node, rank)
    return _spelled(node, rank) if graph.is_op(node, "ReduceMean") else None


def _whole(node: ir.Node, rank: int) -> RowNorm | None:
    axis = graph.attribute_int(node, "axis", -1)
    weight, bias = (*node.inputs[1:], None, None)[:2]
    is_plain = all(not out.uses() and not out.is_graph_output() for out in node.outputs[1:])
    vectors = [value for value in (weight, bias) if value is not None]
    if node.inputs[0] is None or axis not in (-1, rank - 1) or not is_plain or not all(map(_is_vector, vectors)):
        return None
    centred = node.op_type == "LayerNormalization"
    return RowNorm(node.inputs[0], (node,), weight, bias, graph.attribute_float(node, "epsilon", 1e-5), centred)


def _spelled(mean: ir.Node, rank: int) -> RowNorm | None:
    squared = graph.producer(mean.inputs[0])
    of = square_of(squared)
    if (
        squared is None
        or of is None
        or not _is_over_rows(mean, rank)
        or graph.only_consumer(squared.outputs[0]) is not mean
    ):
        return None
    less = of.producer() if graph.is_op(of.producer(), "Sub") else None
    centre = None if less is None or less.inputs[1] is None else less.inputs[1].producer()
    found: list[ir.Node] = []
    x, centred = of, False
    if less is not None and centre is not None and _takes_mean_off(less, centre, rank):
        x, centred, found = less.inputs[0] or of, True, [centre, less]
    found += [squared, mean]
    add = graph.only_consumer(mean.outputs[0])
    epsilon = None if add is None or not graph.is_op(add, "Add") else _number_beside(add, mean.outputs[0])
    root = None if add is None else graph.only_consumer(add.outputs[0])
    if add is None or root is None or epsilon is None or not graph.is_op(root, "Sqrt") or not epsilon >= 0:
        return None
    found += [add, root]
    last = _divided(root, of, found)
    if last is None and centred and x is not None:  # the mean is taken off once more
        again = next((each for each in _subs(x, centre) if each is not less), None)
        last = None if again is None else _divided(root, again.outputs[0], found)
        found = found if again is None else [*found[:2], again, *found[2:]]
    if last is None or x is None:
        return None
    weight, last = with_vector(last, "Mul", found)
    bias, last = with_vector(last, "Add", found)
    if not graph.are_closed(found, last):
        return None
    return RowNorm(x, tuple(found), weight, bias, epsilon, centred)


def _takes_mean_off(less: ir.Node, centre: ir.Node, rank: int) -> bool:
    return graph.is_op(centre, "ReduceMean") and centre.inputs[0] is less.inputs[0] and _is_over_rows(centre, rank)


def _subs(x: ir.Value, centre: ir.Node | None) -> list[ir.Node]:
    """What takes this mean off x."""
    made = None if centre is None else centre.outputs[0]
    readers = [use.node for use in x.uses()]
    return [node for node in readers if graph.is_op(node, "Sub") and node.inputs[0] is x and node.inputs[1] is made]


def _is_over_rows(node: ir.Node, rank: int) -> bool:
    tensor = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = (
        list(node.attributes.get_ints("axes", [])) if tensor is None else [int(each) for each in tensor.numpy().ravel()]
    )
    return axes in ([-1], [rank - 1]) and graph.attribute_int(node, "keepdims", 1) == 1


def _divided(root: ir.Node, of: ir.Value, found: list[ir.Node]) -> ir.Node | None:
    """What divides by the root, or multiplies by its reciprocal; notes down the nodes."""
    behind = graph.only_consumer(root.outputs[0])
    if graph.is_op(behind, "Div") and behind is not None and behind.inputs[0] is of:
        found.append(behind)
        return behind
    is_inverse = graph.is_op(behind, "Reciprocal") or (
        graph.is_op(behind, "Div") and behind is not None and number_of(behind.inputs[0]) == 1.0
    )
    product = graph.only_consumer(behind.outputs[0]) if is_inverse and behind is not None else None
    if behind is None or product is None or not graph.is_op(product, "Mul"):
        return None
    if {*product.inputs} != {of, behind.outputs[0]}:
        return None
    found += [behind, product]
    return product


def with_vector(last: ir.Node, op: str, found: list[ir.Node]) -> tuple[ir.Value | None, ir.Node]:
    """The vector that alone is combined with what `last` makes, and the node that does it."""
    behind = graph.only_consumer(last.outputs[0])
    if behind is None or not graph.is_op(behind, op) or behind.graph is not last.graph:
        return None, last
    others = [value for value in behind.inputs if value is not last.outputs[0]]
    if len(others) != 1 or not _is_vector(others[0]):
        return None, last
    found.append(behind)
    return others[0], behind


def _is_vector(value: ir.Value | None) -> bool:
    """Whether this is a constant with one number, finite, for each of a row."""
    tensor = graph.constant(value)
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or len(tensor.shape) != 1 or tensor.size == 0:
        return False
    return bool(np.isfinite(tensor.numpy()).all())


def _number_beside(node: ir.Node, value: ir.Value) -> float | None:
    others = [each for each in node.inputs if each is not value]
    return number_of(others[0]) if len(others) == 1 else None

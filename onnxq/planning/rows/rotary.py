"""Rows that are turned by angles of their position (Su et al. 2021, RoFormer), as models spell it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types


@dataclass(frozen=True)
class Rotary:
    """x · cos + turned · sin, where `turned` is the second half of each row, its sign changed, before the first.

    Attributes:
        nodes: in order.
    """

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    nodes: tuple[ir.Node, ...]


def rotary_at(add: ir.Node) -> Rotary | None:
    """What the Add `add` makes of Slice or Split by constants, Neg, Concat and Mul, where nobody else reads what lies
    between."""
    if not graph.is_op(add, "Add"):
        return None
    products = [graph.producer(value) for value in add.inputs]
    if any(not graph.is_op(product, "Mul") for product in products):
        return None
    for straight, turned in (products, products[::-1]):
        assert straight is not None and turned is not None
        for index in (0, 1):
            value, sin = turned.inputs[index], turned.inputs[1 - index]
            join = graph.producer(value)
            halves = None if join is None else _halves(join)
            if halves is None or join is None or sin is None:
                continue
            x, nodes = halves
            others = [value for value in straight.inputs if value is not x]
            if len(others) != 1 or others[0] is None or others[0] is sin:
                continue
            found = (*nodes, join, straight, turned, add)
            return Rotary(x, others[0], sin, found) if graph.are_closed(found, add) else None
    return None


def turns_rows(found: Rotary, types: Types) -> bool:
    """Whether it is known to turn float32 rows by as long ones of matrices, and to make as many."""
    x, made = (types.of(value) for value in (found.x, found.nodes[-1].outputs[0]))
    angles = [types.of(value) for value in (found.cos, found.sin)]
    shapes = [each.shape or () for each in angles]
    is_float = {each.dtype for each in (x, *angles)} == {ir.DataType.FLOAT}
    if not is_float or x.shape is None or None in x.shape or x.shape != made.shape or len(x.shape) not in (2, 3, 4):
        return False
    size = x.shape[-1]
    return isinstance(size, int) and size % 2 == 0 and all(len(shape) == 2 and shape[-1] == size for shape in shapes)


def _halves(join: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """What is turned, and the nodes that cut it and change a sign."""
    if not graph.is_op(join, "Concat") or len(join.inputs) != 2 or graph.attribute_int(join, "axis", 0) not in (-1, 3):
        return None
    negative = graph.producer(join.inputs[0])
    if negative is None or not graph.is_op(negative, "Neg") or negative.inputs[0] is None or join.inputs[1] is None:
        return None
    second, first = negative.inputs[0].producer(), join.inputs[1].producer()
    if first is None or second is None:
        return None
    if first is second:
        return _by_split(first, negative, join)
    bounds = [_bounds(each) for each in (first, second)]
    if bounds[0] is None or bounds[1] is None or first.inputs[0] is not second.inputs[0] or first.inputs[0] is None:
        return None
    (start, middle), (again, end) = bounds[0], bounds[1]
    is_half = start == 0 and middle == again and (end == 2 * middle or end >= 1 << 31)
    return (first.inputs[0], (first, second, negative)) if is_half else None


def _by_split(split: ir.Node, negative: ir.Node, join: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    if not graph.is_op(split, "Split") or len(split.outputs) != 2 or split.inputs[0] is None:
        return None
    tensor = graph.constant(split.inputs[1]) if len(split.inputs) > 1 else None
    sizes = list(split.attributes.get_ints("split", [])) if tensor is None else tensor.numpy().tolist()
    is_half = graph.attribute_int(split, "axis", 0) in (-1, 3) and (not sizes or sizes[0] == sizes[1])
    is_turned = negative.inputs[0] is split.outputs[1] and join.inputs[1] is split.outputs[0]
    return (split.inputs[0], (split, negative)) if is_half and is_turned else None


def _bounds(node: ir.Node) -> tuple[int, int] | None:
    """Of a Slice of the last axis."""
    if not graph.is_op(node, "Slice") or len(node.inputs) < 4:
        return None
    read = [graph.constant(value) for value in node.inputs[1:]]
    if any(tensor is None or tensor.size != 1 for tensor in read):
        return None
    start, end, axis, *step = (int(tensor.numpy().reshape(())) for tensor in read if tensor is not None)
    return (start, end) if axis in (-1, 3) and step in ([], [1]) else None

"""Squares on the way to a mean, a root or a logarithm: float16 holds none of numbers from 256 on."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.attention import number_of
from onnxq.planning.counts.uses import MOVES, numbers_of

_SUMS = ("ReduceMean", "ReduceSum")
#: What makes numbers as large as squares of squares and of constants or sizes.
_CARRIES = frozenset(
    [
        *("Abs", "Add", "AveragePool", "Clip", "GlobalAveragePool", "Max", "Min", "Mul", "Neg", "Relu", "Sub", "Sum"),
        *("Where", *MOVES, *_SUMS),
    ]
)
#: What makes smaller numbers of them.
_ENDS = ("Log", "Pow", "Reciprocal", "Sqrt")


def squares_in(model: ir.Model) -> set[ir.Node]:
    """Nodes that compute with squares before something makes them small again.

    1. Squares that are added up, or taken a root, a logarithm or a reciprocal of; the division by them.
    2. What is made of them alone, constants and sizes on the way there: means, with an epsilon, over another count.
    3. What takes a mean off only to square the rest: it reads the mean where that is.
    """
    nodes = list(graph.nodes(model))
    found = _ending(reversed(_squared(nodes)))
    centred = (node for node in nodes if graph.is_op(node, "Sub") and _makes_for(node, found))
    return found | {node for node in centred if graph.is_op(_producer(node, 1), "ReduceMean")}


def square_of(node: ir.Node | None) -> ir.Value | None:
    """Of what a node makes squares."""
    if node is None or node.domain != "" or len(node.inputs) != 2:
        return None
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    return node.inputs[0] if node.op_type == "Pow" and number_of(node.inputs[1]) == 2.0 else None


def _squared(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Nodes that make squares, and numbers that are as large as they are of nothing else; in order."""
    found: list[ir.Node] = []
    squares, sizes = set[ir.Value](), set[ir.Value]()
    for node in nodes:
        numbers = [] if graph.has_body(node) else numbers_of(node)
        others = [value for value in numbers if value not in squares and graph.constant(value) is None]
        read = squares.intersection(numbers)
        if graph.is_op(node, "Shape", "Size") or (numbers and not read and sizes.issuperset(others)):
            sizes.update(node.outputs)
            continue
        is_carried = graph.is_op(node, *_CARRIES) and read and sizes.issuperset(others)
        is_shared = graph.is_op(node, "Div") and node.inputs[0] in squares
        if square_of(node) is not None or graph.is_op(node, "ReduceSumSquare") or is_carried or is_shared:
            found.append(node)
            squares.update(node.outputs)
    return found


def _ending(squared: Iterable[ir.Node]) -> set[ir.Node]:
    """Those of them, from the last to the first, whose numbers come to an end, and what divides by them."""
    found, divided = set[ir.Node](), set[ir.Node]()
    for node in squared:
        readers = [use for value in node.outputs for use in value.uses()]
        is_square = square_of(node) is not None
        by = {use.node for use in readers if graph.is_op(use.node, "Div") and use.idx == 1}
        if by or any(
            use.node in found
            or (graph.is_op(use.node, *_ENDS) and use.idx == 0 and square_of(use.node) is None)
            or (is_square and graph.is_op(use.node, *_SUMS))
            for use in readers
        ):
            found.add(node)
            divided |= by
    return found | divided


def _makes_for(node: ir.Node, readers: set[ir.Node]) -> bool:
    """Whether only squares among these read what it makes."""
    uses = list(node.outputs[0].uses())
    return bool(uses) and all(use.node in readers and square_of(use.node) is not None for use in uses)


def _producer(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index]
    return None if value is None else value.producer()

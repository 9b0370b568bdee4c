"""What the subgraphs of an If, Loop or Scan get, make and carry from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph


@dataclass(frozen=True)
class Link:
    """`after` is the same as `before`, or a part of it, or made of parts like it.

    Attributes:
        is_carried: in a later turn; what a loop begins with has such a link too, for later turns get other numbers.
    """

    before: ir.Value
    after: ir.Value
    is_carried: bool = False


def into(node: ir.Node) -> Iterator[Link]:
    """From what a node reads to what its subgraph gets."""
    for body, outer, _ in _bodies(node):
        states = _states(node)
        yield from _linked(node.inputs[outer : outer + states], body.inputs[outer:], is_carried=True)
        yield from _linked(node.inputs[outer + states :], body.inputs[outer + states :])


def around(node: ir.Node) -> Iterator[Link]:
    """From what a subgraph makes to what it gets in the next turn."""
    for body, outer, inner in _bodies(node):
        yield from _linked(body.outputs[inner : inner + _states(node)], body.inputs[outer:], is_carried=True)


def out_of(node: ir.Node) -> Iterator[Link]:
    """From what subgraphs make to what the node makes."""
    for body, _, inner in _bodies(node):
        yield from _linked(body.outputs[inner:], node.outputs)


def all_links(node: ir.Node) -> Iterator[Link]:
    yield from (*into(node), *around(node), *out_of(node))


def _bodies(node: ir.Node) -> Iterator[tuple[ir.Graph, int, int]]:
    """Each with the number of inputs and outputs in front of what is carried: counters and conditions."""
    outer, inner = (2, 1) if graph.is_op(node, "Loop") else (0, 0)
    for body in graph.bodies(node) if graph.is_op(node, "If", "Loop", "Scan") else ():
        yield body, outer, inner


def _states(node: ir.Node) -> int:
    if graph.is_op(node, "Scan"):
        return len(node.inputs) - graph.attribute_int(node, "num_scan_inputs", 0)
    return len(node.inputs) - 2 if graph.is_op(node, "Loop") else 0


def _linked(
    before: Sequence[ir.Value | None], after: Sequence[ir.Value | None], *, is_carried: bool = False
) -> Iterator[Link]:
    for one, other in zip(before, after, strict=False):
        if one is not None and other is not None:
            yield Link(one, other, is_carried)

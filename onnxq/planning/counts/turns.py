"""What loops add up: numbers that are carried from turn to turn, and to which each turn adds others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.counts import bodies
from onnxq.planning.counts.uses import CHOOSES, MOVES, numbers_of

#: What may add numbers to those at places.
_SCATTERS = ("ScatterElements", "ScatterND")
_SUMS = ("Add", "Sub", "Sum")
#: What makes numbers of which some are those that it reads.
_PASSES = frozenset({"Cast", *_SUMS, *CHOOSES, *MOVES} - {"Min"})


@dataclass(frozen=True)
class Total:
    """What a Loop or Scan carries on and each turn adds to.

    Attributes:
        links: from what a turn hands on to what the next one gets, and to what the node makes of it.
        added: what a turn adds.
        nodes: those that add it.
    """

    links: tuple[bodies.Link, ...]
    added: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]


def totals_of(node: ir.Node) -> Iterator[Total]:
    """Of a Loop or Scan.

    1. From what a turn gets to what it hands on there are only sums, moves and choices: factors are mostly shares, of
       which means are made.
    2. What is added is not computed of what it is added to: such steps go to and fro, or come to an end.
    """
    inside = dict.fromkeys(each for each in graph.inside(node) if each.outputs)
    branches = [link for each in inside if graph.is_op(each, "If") for link in bodies.out_of(each)]
    ends = list(bodies.out_of(node))
    for link in bodies.around(node):
        nodes = _adding(inside, branches, link.after, link.before)
        if nodes:
            added = dict.fromkeys(value for values in nodes.values() for value in values)
            yield Total((link, *(end for end in ends if end.before is link.before)), tuple(added), tuple(nodes))


def adds_in_place(node: ir.Node) -> bool:
    """Whether this is a scatter that adds numbers to those at places."""
    return graph.is_op(node, *_SCATTERS) and graph.attribute_string(node, "reduction", "none") == "add"


def _adding(
    inside: dict[ir.Node, None], branches: list[bodies.Link], state: ir.Value, made: ir.Value
) -> dict[ir.Node, list[ir.Value]]:
    """What adds to `state` on the way to `made`, and what; nothing if something else is done to it too."""
    behind = _behind(made, inside, branches)
    if state not in behind:
        return {}
    out_of_branches = {link.before: link.after for link in branches}
    same, adding = {state}, dict[ir.Node, list[ir.Value]]()
    for node in inside:
        passed = same.intersection(_passed(node))
        if passed and not behind.isdisjoint(node.outputs):
            same.update(each for value in node.outputs for each in _outwards(value, out_of_branches))
            if graph.is_op(node, *_SUMS) or adds_in_place(node):
                adding[node] = [value for value in numbers_of(node) if value not in passed]
    added = {value for values in adding.values() for value in values}
    return adding if added and _computed_of(state, inside).isdisjoint(added) else {}


def _behind(made: ir.Value, inside: Container[ir.Node], branches: list[bodies.Link]) -> set[ir.Value]:
    """What comes to `made` by sums, moves and choices."""
    found, left = {made}, [made]
    while left:
        value = left.pop()
        maker = value.producer()
        if maker is None or maker not in inside:
            continue
        before = _passed(maker) or [link.before for link in branches if link.after is value]
        left += [each for each in before if each not in found]
        found.update(before)
    return found


def _computed_of(state: ir.Value, inside: Iterable[ir.Node]) -> set[ir.Value]:
    found = {state}
    for node in inside:
        if not found.isdisjoint(graph.read_by(node)):
            found.update(node.outputs)
    return found


def _outwards(value: ir.Value | None, out_of_branches: dict[ir.Value, ir.Value]) -> Iterator[ir.Value]:
    while value is not None:
        yield value
        value = out_of_branches.get(value)


def _passed(node: ir.Node) -> list[ir.Value]:
    """The numbers that are among those that it makes, or that others are added to."""
    if node.domain != "" or node.op_type not in _PASSES or graph.has_body(node):
        return []
    is_of_first = node.op_type == "Sub" or adds_in_place(node)
    return numbers_of(node)[:1] if is_of_first else numbers_of(node)

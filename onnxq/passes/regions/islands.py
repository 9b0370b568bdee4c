"""Which groups become one region: as many as hang together, unless others stand between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.passes.regions.groups import Group, Tensor, entry

#: Steps that are worth a region: those on which conversions are spent.
WORTH = ("conv", "gemm")
#: Steps that make tensors of what comes from outside.
ENTRIES = ("quantize", "read")


@dataclass(frozen=True)
class Island:
    """Groups in order; first those that read what comes from outside."""

    groups: tuple[Group, ...]

    @property
    def nodes(self) -> set[ir.Node]:
        """What it stands for; not what makes tensors for it, which others may read too."""
        return _nodes(group for group in self.groups if group.does not in ENTRIES)


def find_island(
    subgraph: ir.Graph, groups: Mapping[Tensor, Group], entry: Callable[[Tensor], Group] = entry
) -> Island | None:
    """Of the groups of a graph, by the tensor that each makes, the largest island that can be computed at once.

    Args:
        entry: the step that makes a tensor of what comes from outside.
    """
    order = {node: number for number, node in enumerate(subgraph)}
    reach = _Reach(order)
    regions: dict[Group, _Region] = {}
    for group in groups.values():
        mine = regions[group] = _Region([group], reach.of(_nodes([group])))
        before = [regions[groups[source]] for source in group.sources if source in groups]
        for other in {id(each): each for each in before}.values():
            both = mine.bits | other.bits
            if other is not mine and both.is_convex:
                # The smaller one moves, so that none of its groups does often.
                less, mine = sorted((mine, other), key=lambda each: len(each.groups))
                mine.groups.extend(less.groups)
                mine.bits = both
                regions.update(dict.fromkeys(less.groups, mine))
    distinct = {id(found): found for found in regions.values() if any(group.does in WORTH for group in found.groups)}
    if not distinct:
        return None
    largest = max(distinct.values(), key=lambda found: len(found.groups))
    found = sorted(largest.groups, key=lambda group: order[group.last])
    return Island((*_entries(found, entry), *found))


def _nodes(groups: Iterable[Group]) -> set[ir.Node]:
    return {node for group in groups for node in (*group.nodes, *group.dequantizers)}


def _entries(found: Iterable[Group], entry: Callable[[Tensor], Group]) -> list[Group]:
    """What makes tensors for these groups and is none of them."""
    made = {group.made for group in found}
    outside = dict.fromkeys(source for group in found for source in group.sources if source not in made)
    return [entry(source) for source in outside]


@dataclass(frozen=True)
class _Bits:
    """Sets of nodes, as bits: some of them, those that they wait for, and those that wait for them."""

    inside: int
    before: int
    behind: int

    def __or__(self, other: _Bits) -> _Bits:
        return _Bits(self.inside | other.inside, self.before | other.before, self.behind | other.behind)

    @property
    def is_convex(self) -> bool:
        """Whether no other node stands between two of them."""
        return not self.before & self.behind & ~self.inside


@dataclass
class _Region:
    """Groups that can be computed at once."""

    groups: list[Group]
    bits: _Bits


class _Reach:
    """Which nodes of a graph wait for which."""

    def __init__(self, order: Mapping[ir.Node, int]) -> None:
        self.order = order
        self.nodes = list(order)
        self.before = [self._direct(node) for node in self.nodes]
        # Bit sets of all nodes that one waits for, and that wait for it.
        self.ancestors: list[int] = []
        for sources in self.before:
            self.ancestors.append(sum_of(self.ancestors[i] | 1 << i for i in sources))
        self.descendants = [0] * len(self.nodes)
        for number in reversed(range(len(self.nodes))):
            for source in self.before[number]:
                self.descendants[source] |= self.descendants[number] | 1 << number

    def _direct(self, node: ir.Node) -> set[int]:
        read = list(node.inputs)
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                read += [value for inner in attribute.as_graph().all_nodes() for value in inner.inputs]
            elif attribute.type is ir.AttributeType.GRAPHS:
                read += [
                    value for body in attribute.as_graphs() for inner in body.all_nodes() for value in inner.inputs
                ]
        producers = [None if value is None else value.producer() for value in read]
        return {self.order[producer] for producer in producers if producer is not None and producer in self.order}

    def of(self, nodes: set[ir.Node]) -> _Bits:
        numbers = [self.order[node] for node in nodes]
        inside, before = sum_of(1 << i for i in numbers), sum_of(self.ancestors[i] for i in numbers)
        return _Bits(inside, before, sum_of(self.descendants[i] for i in numbers))


def sum_of(bits: Iterable[int]) -> int:
    """All bits that one of them has."""
    found = 0
    for each in bits:
        found |= each
    return found

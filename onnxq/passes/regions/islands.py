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
    regions: dict[Group, list[Group]] = {}
    for group in groups.values():
        mine = [group]
        before = [regions[groups[source]] for source in group.sources if source in groups]
        for other in {id(each): each for each in before}.values():
            if reach.is_convex(_nodes((*mine, *other))):
                mine = [*other, *mine]
        for each in mine:
            regions[each] = mine
    distinct: dict[int, list[Group]] = {
        id(found): found for found in regions.values() if any(group.does in WORTH for group in found)
    }
    if not distinct:
        return None
    largest = max(distinct.values(), key=len)
    found = sorted(largest, key=lambda group: order[group.last])
    return Island((*_entries(found, entry), *found))


def _nodes(groups: Iterable[Group]) -> set[ir.Node]:
    return {node for group in groups for node in (*group.nodes, *group.dequantizers)}


def _entries(found: Iterable[Group], entry: Callable[[Tensor], Group]) -> list[Group]:
    """What makes tensors for these groups and is none of them."""
    made = {group.made for group in found}
    outside = dict.fromkeys(source for group in found for source in group.sources if source not in made)
    return [entry(source) for source in outside]


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

    def is_convex(self, nodes: set[ir.Node]) -> bool:
        """Whether no other node stands between two of them."""
        inside = sum_of(1 << self.order[node] for node in nodes)
        before = sum_of(self.ancestors[self.order[node]] for node in nodes)
        behind = sum_of(self.descendants[self.order[node]] for node in nodes)
        return not before & behind & ~inside


def sum_of(bits: Iterable[int]) -> int:
    """All bits that one of them has."""
    found = 0
    for each in bits:
        found |= each
    return found

"""Which groups become one region: as many as hang together, unless others stand between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxq.model import graph
from onnxq.passes.regions.group import Group, Tensor
from onnxq.passes.regions.groups import entry

#: Steps that are worth a region: those on which conversions are spent.
WORTH = ("conv", "conv_transpose", "gemm", "product")
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


def find_islands(subgraph: ir.Graph, groups: Mapping[Tensor, Group]) -> list[tuple[Group, ...]]:
    """Of the groups of a graph, by the tensor that each makes, islands that can be computed at once, each of them and
    all together; the largest first. Where two touch, the smaller one is left out: what it reads changes with the other.

    Groups that read the same tensor from outside, as projections of an attention do, hang together: it is converted
    once.
    """
    order = {node: number for number, node in enumerate(subgraph)}
    reach = _Reach(order)
    parts: dict[Group, _Part] = {}
    makers: dict[Tensor, Group] = dict(groups)  # or the last that reads it
    for group in groups.values():
        mine = reach.part(group)
        before = [parts[makers[source]] for source in group.sources if source in makers]
        for other in dict.fromkeys(before):
            if mine.with_(other).is_convex:
                small, large = sorted((mine, other), key=lambda part: len(part.groups))
                large.take(small)
                parts |= dict.fromkeys(small.groups, large)
                mine = large
        parts[group] = mine
        makers |= dict.fromkeys((source for source in group.sources if source not in groups), group)
    touching: dict[_Part, set[_Part]] = {}
    for group, part in parts.items():
        for other in {parts[groups[source]] for source in group.sources if source in groups} - {part}:
            touching.setdefault(part, set()).add(other)
            touching.setdefault(other, set()).add(part)
    distinct = [part for part in dict.fromkeys(parts.values()) if any(group.does in WORTH for group in part.groups)]
    chosen: list[_Part] = []
    for part in sorted(distinct, key=lambda part: -len(part.groups)):
        if touching.get(part, set()).isdisjoint(chosen) and part.among(chosen).is_convex:
            chosen.append(part)
    return [tuple(sorted(part.groups, key=lambda group: order[group.last])) for part in chosen]


def island_of(found: tuple[Group, ...], entry: Callable[[Tensor], Group] = entry) -> Island:
    """These groups with what makes tensors for them of what comes from outside, as the graph is now.

    Args:
        entry: the step that makes such a tensor.
    """
    return Island((*_entries(found, entry), *found))


def _nodes(groups: Iterable[Group]) -> set[ir.Node]:
    return {node for group in groups for node in (*group.nodes, *group.dequantizers)}


def _entries(found: tuple[Group, ...], entry: Callable[[Tensor], Group]) -> list[Group]:
    """What makes tensors for these groups and is none of them."""
    made = {group.made for group in found}
    outside = dict.fromkeys(source for group in found for source in group.sources if source not in made)
    stacks = {source for group in found for source in group.sources if group.reads_stack}
    return [_stacked(entry(source)) if source in stacks else entry(source) for source in outside]


def _stacked(group: Group) -> Group:
    """The same, of what lies as a stack of matrices."""
    return replace(group, words={**group.words, "stack": 1})


@dataclass(eq=False)
class _Part:
    """Groups, and as bit sets their nodes, the nodes that these wait for, and those that wait for them."""

    groups: list[Group]
    inside: int
    before: int
    behind: int

    @property
    def is_convex(self) -> bool:
        """Whether no other node stands between two of them."""
        return not self.before & self.behind & ~self.inside

    def with_(self, other: _Part) -> _Part:
        """Both, without their groups."""
        return _Part([], self.inside | other.inside, self.before | other.before, self.behind | other.behind)

    def take(self, other: _Part) -> None:
        self.groups += other.groups
        both = self.with_(other)
        self.inside, self.before, self.behind = both.inside, both.before, both.behind

    def among(self, others: Iterable[_Part]) -> _Part:
        """The same where each of the `others` is one node: who waits for some of it waits for all of it."""
        found, rest = self.with_(self), list(others)
        while touched := [each for each in rest if each.inside & (found.before | found.behind)]:
            for each in touched:
                if each.inside & found.before:
                    found.before |= each.inside | each.before
                if each.inside & found.behind:
                    found.behind |= each.inside | each.behind
            rest = [each for each in rest if each not in touched]
        return found


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
        producers = [value.producer() for value in graph.read_by(node)]
        return {self.order[producer] for producer in producers if producer is not None and producer in self.order}

    def part(self, group: Group) -> _Part:
        """A group alone."""
        numbers = [self.order[node] for node in _nodes((group,))]
        return _Part(
            [group],
            sum_of(1 << number for number in numbers),
            sum_of(self.ancestors[number] for number in numbers),
            sum_of(self.descendants[number] for number in numbers),
        )


def sum_of(bits: Iterable[int]) -> int:
    """All bits that one of them has."""
    found = 0
    for each in bits:
        found |= each
    return found

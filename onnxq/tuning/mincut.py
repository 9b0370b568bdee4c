"""The cheapest way to split things in two when some pairs cost extra if they are parted.

Source: Dinic's maximum flow algorithm (1970); that a minimum cut solves this kind of labelling is due to Picard and
Ratliff (1975).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

Node = Hashable


class Cut:
    """A labelling problem: every node goes to the first or the second side.

    Costs are floats; `math.inf` makes a combination impossible.
    """

    def __init__(self) -> None:
        self._index: dict[Node, int] = {}
        self._edges: list[list[int]] = []
        self._to: list[int] = []
        self._capacity: list[float] = []
        self._source = self._node(("source", self))
        self._sink = self._node(("sink", self))

    def cost(self, node: Node, *, first: float, second: float) -> None:
        """What `node` costs on each side; calls add up."""
        shared = min(first, second)  # paid either way; a negative cost only shifts the zero
        index = self._node(node)
        self._connect(self._source, index, second - shared)
        self._connect(index, self._sink, first - shared)

    def apart(self, first: Node, second: Node, cost: float) -> None:
        """What it costs if `first` goes to the first side and `second` to the second."""
        self._connect(self._node(first), self._node(second), cost)

    def first_side(self) -> set[Node]:
        """The nodes on the first side of a cheapest labelling. Uses the problem up."""
        while (levels := self._levels())[self._sink] >= 0:
            position = [0] * len(self._edges)
            while self._augment(levels, position):
                pass
        reached = self._levels()
        return {node for node, index in self._index.items() if reached[index] >= 0 and index != self._source}

    def _node(self, node: Node) -> int:
        if node not in self._index:
            self._index[node] = len(self._edges)
            self._edges.append([])
        return self._index[node]

    def _connect(self, a: int, b: int, capacity: float) -> None:
        for start, end, room in ((a, b, capacity), (b, a, 0.0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._capacity.append(room)

    def _levels(self) -> list[int]:
        """Distance of each node from the source over edges with room; -1 if there is no way."""
        levels = [-1] * len(self._edges)
        levels[self._source] = 0
        queue = deque([self._source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                if self._capacity[edge] > _EPSILON and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[node] + 1
                    queue.append(self._to[edge])
        return levels

    def _augment(self, levels: list[int], position: list[int]) -> bool:
        """Push flow along one path that goes up one level a step; False if there is none left."""
        path: list[int] = []
        node = self._source
        while node != self._sink:
            while position[node] < len(self._edges[node]):
                edge = self._edges[node][position[node]]
                if self._capacity[edge] > _EPSILON and levels[self._to[edge]] == levels[node] + 1:
                    path.append(edge)
                    node = self._to[edge]
                    break
                position[node] += 1
            else:
                if not path:
                    return False
                node = self._to[path.pop() ^ 1]
                position[node] += 1
        room = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= 0 if math.isinf(room) else room
            self._capacity[edge ^ 1] += 0 if math.isinf(room) else room
        if math.isinf(room):
            raise ValueError("no labelling has a finite cost")
        return True


_EPSILON = 1e-15

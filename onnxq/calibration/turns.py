"""Inputs that count the turns of a Loop: where the data know one number of turns, what it returns at others differs.

A Loop that takes no turn returns what was put into it, and each turn may make its states larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.runtime.session import Feed

#: What a number goes through on its way to a Loop.
_CARRYING = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
#: Turns that a Loop takes at most: a larger number says that something else ends it.
MOST = 1 << 16


@dataclass(frozen=True)
class Turns:
    """An input that counts them, of which the data know one value.

    Attributes:
        most: that its type holds.
    """

    input: str
    count: int
    most: int

    def __str__(self) -> str:
        return f"input '{self.input}', a number of turns, is {self.count} in all of the data"

    @property
    def others(self) -> list[int]:
        return sorted({0, 1, min(2 * self.count, self.most)} - {self.count})

    def at(self, count: int, feed: Feed) -> Feed:
        """A sample that takes another number of turns."""
        return {**feed, self.input: np.full_like(feed[self.input], count)}


def turns_of(model: ir.Model, feeds: Sequence[Feed]) -> list[Turns]:
    """The inputs that count turns and are the same in all of `feeds`."""
    found = []
    for name in dict.fromkeys(_counting(model)):
        counts = [feed[name] for feed in feeds if name in feed]
        if len(counts) != len(feeds) or any(x.size != 1 or x.dtype.kind not in "iu" for x in counts):
            continue
        seen = {int(x.item()) for x in counts}
        if len(seen) == 1 and 0 <= min(seen) <= MOST:
            found.append(Turns(name, seen.pop(), int(np.iinfo(counts[0].dtype).max)))
    return found


def _counting(model: ir.Model) -> Iterator[str]:
    inputs = {*model.graph.inputs}
    for node in graph.nodes(model):
        value = node.inputs[0] if graph.is_op(node, "Loop") else None
        while value is not None and value not in inputs:
            maker = value.producer()
            value = maker.inputs[0] if maker is not None and graph.is_op(maker, *_CARRYING) else None
        if value is not None:
            yield value.name or ""

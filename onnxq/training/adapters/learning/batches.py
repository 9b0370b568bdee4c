"""Samples in batches, in an order that a seed and the number of the step decide, so that a run goes on as it began."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.errors import BadData
from onnxq.runtime.session import Feed
from onnxq.samples.fit import Read
from onnxq.samples.source import Data


class Part(NamedTuple):
    """What is computed at once: arrays by name, of one sample or joined along their first axis, and of how many."""

    feed: Feed
    samples: int


class Batches:
    """
    Args:
        data: read when they are asked for.
        size: samples in a batch.
        joins: whether samples of one shape are computed together, along their first axis.
        seed: of the order.

    Raises:
        BadData: there are no samples.
    """

    def __init__(self, data: Data, size: int, *, joins: bool, seed: int = 0) -> None:
        self._reads: list[Read] = list(data.reads())
        if not self._reads:
            raise BadData(f"'{data.source}' holds no samples to train with")
        self._size, self._joins, self._seed = min(size, len(self._reads)), joins, seed

    @property
    def count(self) -> int:
        """Batches in one pass over all samples."""
        return -(-len(self._reads) // self._size)

    def at(self, step: int) -> list[Part]:
        """The batch of a step, in as few parts as the shapes of its samples allow."""
        epoch, i = divmod(step, self.count)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._reads))
        return self._parts([self._reads[k]() for k in order[i * self._size : (i + 1) * self._size]])

    def all(self) -> Iterator[Part]:
        """All samples once, in their own order."""
        for start in range(0, len(self._reads), self._size):
            yield from self._parts([read() for read in self._reads[start : start + self._size]])

    def _parts(self, samples: Sequence[Feed]) -> list[Part]:
        if not self._joins:
            return [Part(sample, 1) for sample in samples]
        alike = itertools.groupby(samples, lambda sample: {name: np.shape(x) for name, x in sample.items()})
        return [_joined(list(group)) for _, group in alike]


def _joined(samples: list[Feed]) -> Part:
    if len(samples) == 1:
        return Part(samples[0], 1)
    feed = {name: np.concatenate([np.atleast_1d(sample[name]) for sample in samples]) for name in samples[0]}
    return Part(feed, len(samples))


def counts_samples(model: ir.Model) -> bool:
    """Whether the first axis of every input and output is one free dimension of the same name: that of samples."""
    values = [*(value for value in model.graph.inputs if value.const_value is None), *model.graph.outputs]
    firsts = {value.shape[0] if value.shape is not None and len(value.shape) else None for value in values}
    names = {first.value if isinstance(first, ir.SymbolicDim) else None for first in firsts}
    return len(names) == 1 and None not in names

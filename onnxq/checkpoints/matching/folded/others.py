"""Constants that are made of others of the model, exactly, as the old numbers of both tell.

A state of zeros times a weight, plus its bias, is the bias; 1 less a mix; the inverse of a power.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.work import EXACT, EXACT_FLOAT, MADE, Work, is_product, may_lie, sizes_of, ways
from onnxq.checkpoints.matching.parameters import FEW, is_literal
from onnxq.errors import listed
from onnxq.model import graph
from onnxq.quality import sqnr

#: Tensors that a sentence lists.
MOST_TOLD = 4
#: Other constants that one is compared with.
MOST_OTHERS = 1000


def by_others(work: Work) -> None:
    """Constants that are made of others which have new numbers: which one, the old numbers of both tell; none where
    several that were equal are so no more."""
    others: _Others | None = None  # which takes reading all of them
    for name, value in list(work.targets.items()):
        tensor = value.const_value
        assert tensor is not None
        if tensor.size < FEW or is_product(value) or is_literal(name):
            continue
        c = tensor.numpy().astype(np.float32)
        if not np.isfinite(c).all() or not np.ptp(c):
            continue
        others = others or _Others(work)
        found: list[tuple[str, NDArray, str]] = []
        for other, source in others.of(c, EXACT.get(tensor.dtype, EXACT_FLOAT)):
            old = work.own[other.name or ""].numpy().astype(np.float32)
            for how, function, view in ways(c, old):
                if sqnr(c, view(function(old))) >= EXACT.get(tensor.dtype, EXACT_FLOAT):
                    assert other.const_value is not None
                    found.append((source, view(function(other.const_value.numpy().astype(np.float32))), how))
                    break
        if found and all(np.array_equal(made, found[0][1]) for _, made, _ in found[1:]):
            work.give(name, *found[0])
        elif found:
            told = listed(list(dict.fromkeys(how.format(source) for source, _, how in found)), MOST_TOLD)
            work.done.misfits.append(f"'{name}' is as well made of one as of another of {told}")


def inverses(work: Work) -> None:
    """Single numbers that are the inverse of one which their module reads, too: of the power of a GeM pooling."""
    for name, value in list(work.targets.items()):
        c = value.const_value
        assert c is not None
        if c.size != 1 or is_literal(name):
            continue
        for other, source in work.given.values():
            old, new = work.own[other.name or ""], other.const_value
            if old.size != 1 or new is None or not work.modules(value) & work.modules(other):
                continue
            x, near = float(old.numpy().item()), 10 ** (-EXACT.get(c.dtype, EXACT_FLOAT) / 20)
            if abs(abs(x) - 1) > near and abs(float(c.numpy().item()) * x - 1) <= near:
                with np.errstate(divide="ignore"):
                    work.give(name, source, 1 / new.numpy().astype(np.float32), "1 / {}")
                break


class _Others:
    """Constants that have new numbers, by the least and the largest of what can be made of their old ones."""

    def __init__(self, work: Work) -> None:
        olds = [(each, work.own[each[0].name or ""]) for each in work.given.values()]
        self._given = [(each, old) for each, old in olds if old.size > 1 and old.dtype in graph.FLOATS]
        ends = np.empty((len(self._given), len(MADE), 2))
        for i, (_, old) in enumerate(self._given):
            p = old.numpy()
            both = np.array([p.min(), p.max()]).astype(np.float32)
            with np.errstate(over="ignore"):
                ends[i] = [np.sort(function(both)) for function in MADE.values()]  # all of them rise, or fall
        self._lows, self._highs = ends[..., 0], ends[..., 1]
        self._have_rows = np.array([len(sizes_of(old)) == 2 for _, old in self._given], bool)

    def of(self, c: NDArray, decibels: float) -> Iterator[tuple[ir.Value, str]]:
        """Those that may be as like a constant as this, whole ones first."""
        near = float(np.linalg.norm(c.astype(np.float64))) * 10 ** (-decibels / 20)
        low, high = float(c.min()) - self._lows, self._highs - float(c.max())  # inf and nan, where numbers are none
        is_within = ((low >= -near) & (high >= -near)).any(1)
        is_equal = ((np.abs(low) <= near) & (np.abs(high) <= near)).any(1)
        with_rows = is_within & self._have_rows & ~is_equal
        found = (self._given[i] for i in [*np.flatnonzero(is_equal), *np.flatnonzero(with_rows)])
        yield from itertools.islice((each for each, old in found if may_lie(c.shape, old)), MOST_OTHERS)

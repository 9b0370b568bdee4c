"""How far apart two arrays of numbers are, summed over samples; how one has to be turned to be the other."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxq.quality import MAX_DB, UNEQUAL_DB
from onnxq.quality.ranges import ranges
from onnxq.summaries.pair_sums import PairSums

#: Arrays whose cosine is at least so much are the same, as far as their order goes.
ALIKE = 0.9
#: More axes are not tried in every order.
_MOST_AXES = 4


@dataclass
class Difference:
    """Of the numbers that are finite in the first array.

    Attributes:
        broken: the other one had numbers that are not finite where the first one's were; or the first one's were not
            anywhere, and the other one's are others.
        untold: in places where the first one's were not, the other one had something else.
        sums: by range, as `ranges` says.
    """

    broken: bool = False
    untold: bool = False
    sums: dict[int, PairSums] = field(default_factory=dict)

    def add(self, wanted: NDArray, got: NDArray) -> None:
        """Of two arrays of one size, in the same order."""
        x, y = wanted.reshape(-1), got.reshape(-1)
        known = np.isfinite(x)
        if not known.all():
            is_other = not np.array_equal(x[~known].astype(float), y[~known].astype(float), equal_nan=True)
            if not known.any() and is_other:  # else anything would be the same as it
                self.broken = True
                return
            self.untold |= is_other
            x, y = x[known], y[known]
        for by, a, b in ranges(x, y):
            try:
                self.sums.setdefault(by, PairSums()).add(a, b)
            except ValueError:
                self.broken = True

    @property
    def count(self) -> int:
        return sum(sums.count for sums in self.sums.values())

    @property
    def sqnr(self) -> float:
        """Of the worst range."""
        is_other = self.untold or any(sums.noise for sums in self.sums.values())
        found = min((sums.sqnr for sums in self._heard()), default=MAX_DB)
        return -MAX_DB if self.broken else min(UNEQUAL_DB if is_other else MAX_DB, found)

    @property
    def cosine(self) -> float:
        return 0.0 if self.broken else min((sums.cosine for sums in self._heard()), default=1.0)

    @property
    def max_error(self) -> float:
        with np.errstate(over="ignore"):  # of two numbers that are finite, the difference may be infinite
            largest = max((float(np.ldexp(sums.largest, by)) for by, sums in self.sums.items()), default=0.0)
        return math.inf if self.broken else largest

    def _heard(self) -> list[PairSums]:
        """All but those of tiny numbers beside others, which are silence."""
        others = [sums for by, sums in self.sums.items() if by >= 0]
        return others if any(sums.signal for sums in others) else [*self.sums.values()]


def difference(wanted: NDArray, got: NDArray) -> Difference:
    found = Difference()
    found.add(wanted, got)
    return found


def axes_between(wanted: NDArray, got: NDArray) -> tuple[int, ...] | None:
    """The order of `got`'s axes in which it is `wanted`, () for its own; None if it cannot be.

    Shapes that differ by dimensions of 1, or by how axes are folded, are the same in their own order. Where several
    orders give the right shape, as of square images with the channels last, the one that looks alike is taken.
    """
    if wanted.size != got.size:
        return None
    same = wanted.shape == got.shape or _folded(wanted) == _folded(got) or wanted.ndim != got.ndim
    if same and (wanted.ndim < 2 or difference(wanted, got).cosine >= ALIKE):
        return ()
    best: tuple[int, ...] | None = () if same else None
    closest = difference(wanted, got).cosine if same else -2.0
    if wanted.ndim == got.ndim <= _MOST_AXES:
        for order in itertools.permutations(range(got.ndim)):
            turned = got.transpose(order)
            if turned.shape == wanted.shape and order != tuple(range(got.ndim)):
                cosine = difference(wanted, turned).cosine
                if cosine > closest and (not same or cosine >= ALIKE):
                    best, closest = order, cosine
    return best


def _folded(x: NDArray) -> tuple[int, ...]:
    return tuple(size for size in x.shape if size != 1)


def turned(x: NDArray, axes: tuple[int, ...]) -> NDArray:
    return x.transpose(axes) if axes else x


def turned_back(x: NDArray, axes: tuple[int, ...]) -> NDArray:
    """The array that `turned` by the same axes gives `x`."""
    return np.ascontiguousarray(x.transpose(np.argsort(axes))) if axes else x

"""mse: the range with the least expected squared error of the numbers rounded to it and clipped by it.

Source: the criterion of Choukroun et al., Low-bit Quantization of Neural Networks for Efficient Inference (2019),
section 3, evaluated on a histogram, for both ends of the range.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.collectors import SummaryCollector
from onnxq.summaries.histogram import BINS, Histogram
from onnxq.summaries.ranges import UINT8, Grid, Range

#: Ends tried at once; how often each end is searched in turn; and how often between the neighbours of the best.
CANDIDATES, TURNS, REFINEMENTS = 33, 2, 3
#: Share of the whole range's error below which clipping is taken to be real: the estimate is no better than this.
WORTHWHILE = 0.99


class Mse(SummaryCollector):
    """Clips where the finer steps inside gain more than the clipped numbers lose."""

    def range(self, grid: Grid = UINT8) -> Range | None:
        h = self.histogram
        if h is None or not h.counts.size:
            return None
        error = _Errors(h, self.summary.zeros, grid)
        # Ends lie between 0 and the extremes: every grid holds 0.
        whole = np.array([min(h.low, 0.0), max(h.high, 0.0)])
        best, least = whole, error.of(whole[None])[0]
        limit = WORTHWHILE * least
        # Both ends together first, then each in turn: what one end gains may depend on where the other is.
        for moved in [np.array([1.0, 1.0]), *[np.array([1.0, 0.0]), np.array([0.0, 1.0])] * TURNS]:
            start = 1 - moved
            low, high = 0.0, 1.0
            for _ in range(1 + REFINEMENTS):
                shares = np.linspace(low, high, CANDIDATES)
                base = whole if moved.all() else best
                tried = base * start + moved * shares[:, None] * whole
                found = error.of(tried)
                at = int(np.argmin(found))
                if found[at] < least:
                    best, least = tried[at], found[at]
                low, high = shares[max(at - 1, 0)], shares[min(at + 1, CANDIDATES - 1)]
        low, high = best if least < limit else whole
        return Range(float(min(max(low, h.low), h.high)), float(max(min(high, h.high), h.low)))


class _Errors:
    """The expected squared error of ranges, from sums over the histogram, in which each bin counts as its middle."""

    def __init__(self, h: Histogram, zeros: int, grid: Grid) -> None:
        self.grid, self.first = grid, h.first
        counts = h.counts.astype(np.float64)
        if zeros:  # they are a code of every grid
            counts[-h.first] -= zeros
        # Relative to the largest magnitude, whose square might not be a number.
        self.unit = max(abs(h.low), abs(h.high)) or 1.0
        self.width = h.width / self.unit
        x = np.clip(h.centers(), h.low, h.high) / self.unit
        self.sums = [np.concatenate([[0.0], np.cumsum(counts * x**k)]) for k in range(3)]

    def of(self, ends: NDArray[np.float64]) -> NDArray[np.float64]:
        """Summed squared error of each range in `ends` [n, 2], lower ends up to 0 and upper ends from 0."""
        low, high = ends[:, :1] / self.unit, ends[:, 1:] / self.unit
        step = np.maximum(self.grid.step(low, high), np.finfo(np.float64).tiny)
        below = self._up_to(low)
        above = [whole[-1] - s for whole, s in zip(self.sums, self._up_to(high), strict=True)]
        clipped = sum(n * end**2 - 2 * end * s1 + s2 for end, (n, s1, s2) in ((low, below), (high, above)))
        inside = self.sums[0][-1] - below[0] - above[0]
        even = clipped + inside * step**2 / 12
        if self.grid.steps > BINS:
            return even[:, 0]
        # Where the steps are wide compared with the numbers, these are not spread evenly over them.
        return np.minimum(even, self._rounded(low, step) + inside * self.width**2 / 12)[:, 0]

    def _rounded(self, low: NDArray[np.float64], step: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each bin's middle, rounded to the nearest code."""
        steps = self.grid.steps
        zero = np.full_like(low, steps // 2) if self.grid.symmetric else np.round(-low / step)
        codes = (np.arange(steps + 1) - zero) * step
        everything = np.full_like(low, np.inf)
        borders = np.concatenate([-everything, codes[:, 1:] - step / 2, everything], axis=1)
        n, s1, s2 = (np.diff(s, axis=1) for s in self._up_to(borders))
        return np.sum(s2 - 2 * codes * s1 + codes**2 * n, axis=1, keepdims=True)

    def _up_to(self, x: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Count, sum and sum of squares of the numbers below each `x`."""
        bins = len(self.sums[0]) - 1
        at = np.clip(np.ceil(np.clip(x / self.width, -(2.0**60), 2.0**60) - 0.5) - self.first, 0, bins).astype(np.intp)
        return [s[at] for s in self.sums]

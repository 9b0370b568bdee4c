"""percentile: the range that leaves a small share of the values outside, on each side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.collectors import finite
from onnxq.collectors._histogram import Histogram
from onnxq.ranges import Range

#: Share of the values, in percent, inside the range as seen from each end.
PERCENTILE = 99.999


class Percentile:
    """Insensitive to a few outliers, at the price of clipping them."""

    def __init__(self) -> None:
        self._histogram = Histogram()

    def update(self, x: NDArray) -> None:
        self._histogram.update(finite(x))

    def merge(self, other: Percentile) -> None:
        self._histogram.merge(other._histogram)

    def range(self) -> Range | None:
        h = self._histogram
        if not h.counts.size:
            return None
        inside = np.cumsum(h.counts)
        outside = h.total * (1 - PERCENTILE / 100)
        width = 2.0**h.exponent
        low = (h.first + int(np.searchsorted(inside, outside, side="right"))) * width
        high = (h.first + int(np.searchsorted(inside, h.total - outside, side="left")) + 1) * width
        return Range(max(low, h.low), min(high, h.high))

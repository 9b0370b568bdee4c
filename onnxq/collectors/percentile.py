"""percentile: the range that leaves a small share of the values outside, on each side."""

from __future__ import annotations

import numpy as np

from onnxq.collectors import SummaryCollector
from onnxq.summaries.ranges import UINT8, Grid, Range

#: Share of the values, in percent, inside the range as seen from each end.
PERCENTILE = 99.999


class Percentile(SummaryCollector):
    """Insensitive to a few outliers, at the price of clipping them."""

    def range(self, grid: Grid = UINT8) -> Range | None:
        h = self.summary.histogram
        if h is None or not h.counts.size:
            return None
        inside = np.cumsum(h.counts)
        outside = h.total * (1 - PERCENTILE / 100)
        low = (h.first + int(np.searchsorted(inside, outside, side="right"))) * h.width
        high = (h.first + int(np.searchsorted(inside, h.total - outside, side="left")) + 1) * h.width
        return Range(max(low, h.low), min(high, h.high))

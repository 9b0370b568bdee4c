"""moving-average: the exponential moving average of each batch's lowest and highest value.

Source: Jacob et al., Quantization and Training of Neural Networks (2018), section 3.1.
"""

from __future__ import annotations

from onnxq.collectors import SummaryCollector
from onnxq.summaries.ranges import UINT8, Grid, Range


class MovingAverage(SummaryCollector):
    """Smooths single outlying batches away: a new batch counts for a tenth (`MOMENTUM`), the first one fully.

    The order of batches matters. `merge` is deterministic, but weighs by the number of batches: it is not what one run
    over all of them would give.
    """

    needs_histogram = False

    def range(self, grid: Grid = UINT8) -> Range | None:
        s = self.summary
        return Range(s.average_low, s.average_high) if s.batches else None

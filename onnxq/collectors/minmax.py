"""minmax: the lowest and the highest value ever seen."""

from __future__ import annotations

from onnxq.collectors import SummaryCollector
from onnxq.summaries.ranges import UINT8, Grid, Range


class Minmax(SummaryCollector):
    """Clips nothing that the calibration data hold; one outlier widens the range for good."""

    needs_histogram = False

    def range(self, grid: Grid = UINT8) -> Range | None:
        s = self.summary
        return Range(s.low, s.high) if s.finite else None

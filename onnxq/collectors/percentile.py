"""percentile: the range that leaves a small share of the values outside, on each side.

The word may say how large a share stays inside, as seen from each end: `percentile:99.99`, or for the low and the high
end apart `percentile:99.9,99.99`.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from onnxq.collectors import SummaryCollector
from onnxq.errors import BadRecipe
from onnxq.summaries.ranges import UINT8, Grid, Range

#: Share of the values, in percent, inside the range as seen from each end.
PERCENTILE = 99.999


class Percentile(SummaryCollector):
    """Insensitive to a few outliers, at the price of clipping them.

    Attributes:
        shares: percent of the values above the low end, and below the high one.
    """

    shares: ClassVar[tuple[float, float]] = (PERCENTILE, PERCENTILE)

    @classmethod
    def with_parameters(cls, text: str) -> type[Self]:
        """The collector of other shares than 99.999 %.

        Raises:
            BadRecipe: not one or two numbers, above 50 and up to 100.
        """
        try:
            found = tuple(float(part) for part in text.split(","))
        except ValueError:
            found = ()
        if len(found) not in (1, 2) or not all(50 < share <= 100 for share in found):
            raise BadRecipe(f"'{text}' is no percentile: it is above 50 and up to 100, as 99.99, or two of them")
        return type(cls.__name__, (cls,), {"shares": (found[0], found[-1])})

    def range(self, grid: Grid = UINT8) -> Range | None:
        h = self.histogram
        if h is None or not h.counts.size:
            return None
        inside = np.cumsum(h.counts)
        below, above = (h.total * (1 - share / 100) for share in self.shares)
        low = (h.first + int(np.searchsorted(inside, below, side="right"))) * h.width
        # Of all values the last one is the end, whatever the subtraction is rounded to.
        last = min(int(np.searchsorted(inside, h.total - above, side="left")), len(inside) - 1)
        return Range(max(low, h.low), min((h.first + last + 1) * h.width, h.high))

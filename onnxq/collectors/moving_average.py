"""moving-average: the exponential moving average of each batch's lowest and highest value.

Source: Jacob et al., Quantization and Training of Neural Networks (2018), section 3.1.
"""

from __future__ import annotations

from typing import Self

from onnxq.collectors import SummaryCollector
from onnxq.errors import BadRecipe
from onnxq.summaries.ranges import UINT8, Grid, Range
from onnxq.summaries.summary import MOMENTUM


class MovingAverage(SummaryCollector):
    """Smooths single outlying batches away: a new batch counts for a tenth (`MOMENTUM`), the first one fully.

    The word may say for how much: `moving-average:0.3`.

    The order of batches matters. `merge` is deterministic, but weighs by the number of batches: it is not what one run
    over all of them would give.
    """

    needs_histogram = False
    momentum = MOMENTUM

    @classmethod
    def with_parameters(cls, text: str) -> type[Self]:
        """The collector in which a new batch weighs otherwise than 0.1.

        Raises:
            BadRecipe: not a number above 0 and up to 1.
        """
        try:
            momentum = float(text)
        except ValueError:
            momentum = 0.0
        if not 0 < momentum <= 1:
            raise BadRecipe(f"'{text}' is no momentum: a new batch weighs more than 0 and up to 1, as 0.1")
        return type(cls.__name__, (cls,), {"momentum": momentum})

    def range(self, grid: Grid = UINT8) -> Range | None:
        s = self.summary
        return Range(s.average_low, s.average_high) if s.batches else None

"""moving-average: the exponential moving average of each batch's lowest and highest value.

Source: Jacob et al., Quantization and Training of Neural Networks (2018), section 3.1.
"""

from __future__ import annotations

from numpy.typing import NDArray

from onnxq.collectors import finite
from onnxq.ranges import Range

#: Weight of a new batch. The first batch counts fully.
MOMENTUM = 0.1


class MovingAverage:
    """Smooths single outlying batches away. The order of batches matters; `merge` weighs by the number of batches."""

    def __init__(self) -> None:
        self._low = self._high = 0.0
        self._batches = 0

    def update(self, x: NDArray) -> None:
        x = finite(x)
        if not x.size:
            return
        low, high = float(x.min()), float(x.max())
        share = MOMENTUM if self._batches else 1.0
        self._low += share * (low - self._low)
        self._high += share * (high - self._high)
        self._batches += 1

    def merge(self, other: MovingAverage) -> None:
        total = self._batches + other._batches
        if total:
            share = other._batches / total
            self._low += share * (other._low - self._low)
            self._high += share * (other._high - self._high)
            self._batches = total

    def range(self) -> Range | None:
        return Range(self._low, self._high) if self._batches else None

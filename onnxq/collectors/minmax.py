"""minmax: the lowest and the highest value ever seen."""

from __future__ import annotations

from numpy.typing import NDArray

from onnxq.collectors import finite
from onnxq.ranges import Range


class Minmax:
    """Clips nothing that the calibration data hold; one outlier widens the range for good."""

    def __init__(self) -> None:
        self._range: Range | None = None

    def update(self, x: NDArray) -> None:
        x = finite(x)
        if x.size:
            self._take(Range(float(x.min()), float(x.max())))

    def merge(self, other: Minmax) -> None:
        if other._range is not None:
            self._take(other._range)

    def range(self) -> Range | None:
        return self._range

    def _take(self, seen: Range) -> None:
        self._range = seen if self._range is None else self._range.union(seen)

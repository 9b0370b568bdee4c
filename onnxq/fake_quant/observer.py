"""Where the grid of an activation comes from: watch batches, then ask."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq import collectors
from onnxq.collectors import Collector
from onnxq.errors import BadData
from onnxq.fake_quant.affine import AffineGrid, grid_over


class Observer:
    """Collects the range of a tensor, or of each of its channels, and makes a grid of it.

    Args:
        method: a file name of `collectors/` (minmax, moving-average, percentile …).
        bits, symmetric: of the grid, as `grid_over` takes them.
        axis: of the channels, each with a collector of its own; None for one range.
    """

    def __init__(
        self, method: str = "minmax", bits: int = 8, *, symmetric: bool = False, axis: int | None = None
    ) -> None:
        self.method, self.bits, self.symmetric, self.axis = method, bits, symmetric, axis
        self._make = collectors.get(method)
        self._seen: list[Collector] = []

    def update(self, x: NDArray) -> None:
        """Take in one batch.

        Raises:
            ValueError: it has another number of channels than the batches before.
        """
        rows = x.reshape(1, -1) if self.axis is None else np.moveaxis(x, self.axis, 0).reshape(x.shape[self.axis], -1)
        if not self._seen:
            self._seen = [self._make() for _ in rows]
        if len(rows) != len(self._seen):
            raise ValueError(f"{len(rows)} channels after batches of {len(self._seen)}")
        for collector, row in zip(self._seen, rows, strict=True):
            collector.update(row)

    def grid(self) -> AffineGrid:
        """The grid over what was seen; a channel without a finite number gets steps of 1.

        Raises:
            BadData: nothing was seen.
        """
        if not self._seen:
            raise BadData("the observer has not seen a batch yet: call update first")
        ranges = [collector.range() for collector in self._seen]
        low = np.array([0.0 if r is None else r.low for r in ranges])
        high = np.array([0.0 if r is None else r.high for r in ranges])
        if self.axis is None:
            return grid_over(low[0], high[0], self.bits, symmetric=self.symmetric)
        return grid_over(low, high, self.bits, symmetric=self.symmetric, axis=self.axis)

"""Where the grid of an activation comes from: watch batches, then ask."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq import collectors
from onnxq.collectors import Collector
from onnxq.errors import BadData
from onnxq.fake_quant.affine import AffineGrid, codes_of, grid_over
from onnxq.formats.kinds import arguments
from onnxq.summaries.ranges import Grid
from onnxq.summaries.summary import MOMENTUM


class Observer:
    """Collects the range of a tensor, or of each of its channels, and makes a grid of it.

    Args:
        method: a file name of `collectors/` (minmax, moving-average, percentile …), which may have parameters:
            `percentile:99.99`, or `percentile:99.9,99.99` for the low and the high end; `entropy@2048` for other bins.
        bits, symmetric: of the grid, as `grid_over` takes them. The range is the one that is best on that grid.
        axis: of the channels, each with a collector of its own; None for one range.
        momentum: of moving-average: what a new batch weighs against all before, above 0 and up to 1; None: 0.1, or as
            the method says (`moving-average:0.3`).

    Raises:
        BadRecipe: there is no such method.
        ValueError: widths other than 2 to 16 bits, or such a momentum.
    """

    def __init__(
        self,
        method: str = "minmax",
        bits: int = 8,
        *,
        symmetric: bool = False,
        axis: int | None = None,
        momentum: float | None = None,
    ) -> None:
        qmin, qmax = codes_of(bits, symmetric=symmetric)
        if momentum is not None and not 0 < momentum <= 1:
            raise ValueError(f"a new batch cannot weigh {momentum}: above 0, and up to 1")
        self.method, self.bits, self.symmetric, self.axis = method, bits, symmetric, axis
        self._make, self._levels = collectors.get(method), Grid(qmax - qmin, symmetric)
        self.momentum: float = momentum or self._make.momentum or MOMENTUM
        self._seen: list[Collector] = []
        self._batches = 0

    def update(self, x: ArrayLike) -> None:
        """Take in one batch: any shape with that axis; NaN and infinities are left out.

        Args:
            x: of any floating-point type, or nested lists of numbers.

        Raises:
            ValueError: it has another number of channels than the batches before, no such axis, or no numbers.
        """
        x = arguments.numbers(x, "batch")
        if self.axis is None:
            rows = x.reshape(1, -1)
        else:
            first = np.moveaxis(x, arguments.axis_of(self.axis, x.ndim), 0)
            rows = first.reshape(len(first), x.size // max(1, len(first)))
        if not self._seen:
            self._seen = [self._make() for _ in rows]
            for collector in self._seen:
                collector.summary.momentum = self.momentum
        if len(rows) != len(self._seen):
            raise ValueError(f"{len(rows)} channels after batches of {len(self._seen)}")
        for collector, row in zip(self._seen, rows, strict=True):
            collector.update(row)
        self._batches += 1

    def reset(self) -> None:
        """Forget every batch."""
        self._seen, self._batches = [], 0

    @property
    def batches(self) -> int:
        """How many batches were taken in."""
        return self._batches

    @property
    def has_data(self) -> bool:
        """Whether a finite number was seen."""
        return any(collector.summary.finite for collector in self._seen)

    @property
    def low(self) -> NDArray[np.float64]:
        """The lowest finite number seen, or that of each channel, [channels]; inf where there was none."""
        return self._extremes("low", np.inf)

    @property
    def high(self) -> NDArray[np.float64]:
        """The highest finite number seen, or that of each channel, [channels]; -inf where there was none."""
        return self._extremes("high", -np.inf)

    def _extremes(self, name: str, of_none: float) -> NDArray[np.float64]:
        found = np.array([getattr(collector.summary, name) for collector in self._seen], np.float64)
        if self.axis is not None:
            return found
        return found[0] if found.size else np.asarray(of_none)

    def grid(self) -> AffineGrid:
        """The grid over what was seen; a channel without a finite number gets steps of 1.

        Raises:
            BadData: nothing was seen.
        """
        if not self._seen:
            raise BadData("the observer has not seen a batch yet: call update first")
        ranges = [collector.range(self._levels) for collector in self._seen]
        low = np.array([0.0 if r is None else r.low for r in ranges])
        high = np.array([0.0 if r is None else r.high for r in ranges])
        if self.axis is None:
            return grid_over(low[0], high[0], self.bits, symmetric=self.symmetric)
        return grid_over(low, high, self.bits, symmetric=self.symmetric, axis=self.axis)

    def __repr__(self) -> str:
        return f"Observer({self.method}, {self.bits} bits, {self.batches} batches)"

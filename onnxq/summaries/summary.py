"""What is kept of one activation, whatever is asked of it later: the numpy form, which the compiled one equals."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.files import schemas
from onnxq.summaries.histogram import BINS, Histogram

#: Weight of a new batch in the moving average. The first batch counts fully.
MOMENTUM = 0.1
#: Sums are float64, made in this order everywhere: number i of a block goes to lane i mod LANES, lanes are added up
#: from the first, blocks too, and what an array adds up to is added to what there was.
LANES, BLOCK = 16, 1 << 15
#: Bits of the sums over all samples.
DIGITS = 24


#: Of one batch; None where it held no finite number.
Extremes = tuple[float, float] | None


@dataclass
class Summary:
    """A constant-size statistic of all numbers of one activation.

    Attributes:
        count, nans, infinities: numbers of each kind; `count` is of all of them.
        low, high: of the finite numbers; inf and -inf where there are none.
        histogram: of the finite numbers; None if it was not asked for.
        zeros, total, squares: how many are zero, and sums of the finite numbers and of their squares; kept together
            with the histogram, because filling it takes longer anyway, and 0 without.
        batches: batches with finite numbers, of which `average_low` and `average_high` are the moving averages.
        momentum: weight of a new batch in those averages, above 0 and up to 1.
        least_rank, most_rank: dimensions of the arrays; -1 before the first.
        axis: of the channels whose extremes are kept in `channel_low` and `channel_high`; None: of none.
            Arrays without that axis, or with other numbers of channels than the first, are left out and counted in
            `unlike`.
        trail: of each batch the lowest and highest finite number, or None, in order, if they were asked for: the
            moving averages of all batches follow from those of their parts.
    """

    count: int = 0
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    batches: int = 0
    average_low: float = 0.0
    average_high: float = 0.0
    least_rank: int = -1
    most_rank: int = -1
    unlike: int = 0
    momentum: float = MOMENTUM
    histogram: Histogram | None = field(default_factory=Histogram)
    axis: int | None = None
    channel_low: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    channel_high: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    trail: list[Extremes] | None = None

    @property
    def finite(self) -> int:
        """How many finite numbers there were."""
        return self.count - self.nans - self.infinities

    def update(self, x: NDArray) -> None:
        """Take in one batch: any shape and float type, NaN and infinities counted and left out, empty allowed."""
        self._take_rank(x.ndim, x.ndim)
        if x.dtype not in (np.float32, np.float64):
            x = x.astype(np.float32)
        if self.axis is not None and x.size:
            self._update_channels(x)
        flat = x.reshape(-1)
        self.count += flat.size
        mask = np.isfinite(flat)
        finite = flat
        if not mask.all():
            self.nans += int(np.count_nonzero(np.isnan(flat)))
            self.infinities += int(np.count_nonzero(np.isinf(flat)))
            finite, flat = flat[mask], np.where(mask, flat, flat.dtype.type(0))
        if not finite.size:
            return
        low, high = float(finite.min()) + 0.0, float(finite.max()) + 0.0  # + 0.0: no minus zero
        self.low, self.high = min(self.low, low), max(self.high, high)
        share = self.momentum if self.batches else 1.0
        self.average_low += share * (low - self.average_low)
        self.average_high += share * (high - self.average_high)
        self.batches += 1
        if self.trail is not None:
            self.trail.append((low, high))
        if self.histogram is not None:
            self.histogram.update(finite)
            self.zeros += int(np.count_nonzero(finite == 0))
            total, squares = sums(flat)
            self.total += total
            self.squares += squares

    def merge(self, other: Summary) -> None:
        """Take in what `other` has seen, as if it had been seen here after all the rest.

        Exact but for the sums, which are rounded, and the moving averages, which are weighed by the numbers of batches.
        """
        for name in ("count", "nans", "infinities", "zeros", "total", "squares", "unlike"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        if other.batches:
            share = other.batches / (self.batches + other.batches)
            self.average_low += share * (other.average_low - self.average_low)
            self.average_high += share * (other.average_high - self.average_high)
            self.batches += other.batches
        if other.least_rank >= 0:
            self._take_rank(other.least_rank, other.most_rank)
        if self.histogram is not None and other.histogram is not None:
            self.histogram.merge(other.histogram)
        else:
            self.histogram, self.zeros, self.total, self.squares = None, 0, 0.0, 0.0
        if other.channel_low.size:
            self._take_channels(other.channel_low, other.channel_high)

    def follow(self, trail: list[Extremes]) -> None:
        """Make the moving averages of these batches, in their order."""
        self.batches, self.average_low, self.average_high = 0, 0.0, 0.0
        for low, high in filter(None, trail):
            share = self.momentum if self.batches else 1.0
            self.average_low += share * (low - self.average_low)
            self.average_high += share * (high - self.average_high)
            self.batches += 1

    def settled(self) -> Summary:
        """The same with sums of `DIGITS` bits: those behind depend on the parts that they were added up from."""
        return replace(self, total=_rounded(self.total), squares=_rounded(self.squares))

    def _take_rank(self, least: int, most: int) -> None:
        self.least_rank = least if self.least_rank < 0 else min(self.least_rank, least)
        self.most_rank = max(self.most_rank, most)

    def _update_channels(self, x: NDArray) -> None:
        assert self.axis is not None
        if not -x.ndim <= self.axis < x.ndim:
            self.unlike += 1
            return
        rows = np.moveaxis(x, self.axis, 0).reshape(x.shape[self.axis], -1).astype(np.float64)
        mask = np.isfinite(rows)
        low = np.where(mask, rows, np.inf).min(axis=1, initial=np.inf) + 0.0
        high = np.where(mask, rows, -np.inf).max(axis=1, initial=-np.inf) + 0.0
        self._take_channels(low, high)

    def _take_channels(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        if not self.channel_low.size:
            self.channel_low, self.channel_high = low, high
        elif self.channel_low.size != low.size:
            self.unlike += 1
        else:
            self.channel_low = np.minimum(self.channel_low, low)
            self.channel_high = np.maximum(self.channel_high, high)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; floats keep every bit."""
        table: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        table["channel_low"], table["channel_high"] = self.channel_low.tolist(), self.channel_high.tolist()
        if self.trail is not None:
            table["trail"] = self.trail
        if (h := self.histogram) is not None:
            counts = base64.b64encode(zlib.compress(h.counts.astype("<i8").tobytes(), 1)).decode()
            table["histogram"] = {"exponent": h.exponent, "first": h.first, "counts": counts}
        return table


_NESTED = ("histogram", "channel_low", "channel_high", "trail")
_PLAIN = tuple(f for f in Summary.__dataclass_fields__ if f not in _NESTED)


def from_dict(table: dict[str, Any]) -> Summary:
    """The summary that `to_dict` wrote.

    Raises:
        ValueError: it did not.
    """
    t = schemas.checked(table, schemas.SummaryFile)
    made = Summary(**{name: getattr(t, name) for name in _PLAIN}, histogram=None)
    made.channel_low, made.channel_high = np.array(t.channel_low, np.float64), np.array(t.channel_high, np.float64)
    made.trail = t.trail
    if made.finite < 0 or len(made.channel_low) != len(made.channel_high) or made.least_rank > made.most_rank:
        raise ValueError("the counts do not add up")
    if made.finite and not -math.inf < made.low <= made.high < math.inf:
        raise ValueError("the extremes are none")
    if made.axis is None and made.channel_low.size:
        raise ValueError("there are channels and no axis of them")
    if (stored := t.histogram) is not None:
        made.histogram = _histogram(stored, made)
    return made


def _histogram(stored: schemas.HistogramFile, of: Summary) -> Histogram:
    h = Histogram()
    try:
        unpack = zlib.decompressobj()
        raw = unpack.decompress(base64.b64decode(stored.counts, validate=True), 8 * BINS + 8)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    h.exponent, h.first, h.low, h.high = stored.exponent, stored.first, of.low, of.high
    h.counts = np.frombuffer(raw, "<i8").astype(np.int64)
    if len(h.counts) > BINS or (h.counts < 0).any() or sum(h.counts.tolist()) != of.finite or not h.spans_its_range:
        raise ValueError("the counts do not add up")
    return h


def _rounded(number: float) -> float:
    if not math.isfinite(number):
        return number
    digits, exponent = math.frexp(number)
    return math.ldexp(round(math.ldexp(digits, DIGITS)), exponent - DIGITS)


def sums(x: NDArray) -> tuple[float, float]:
    """The sum of the finite numbers `x` [n], and of their squares, in the stated order."""
    total = squares = 0.0
    for start in range(0, x.size, BLOCK):
        part = np.zeros((min(BLOCK, -(-(x.size - start) // LANES) * LANES) // LANES, LANES))
        block = x[start : start + BLOCK]
        part.reshape(-1)[: block.size] = block
        with np.errstate(over="ignore", invalid="ignore"):  # of float64 near its limit
            # Reducing the outer axis adds row to row, in order.
            total += _in_order(np.add.reduce(part, axis=0))
            squares += _in_order(np.add.reduce(part * part, axis=0))
    return total, squares


def _in_order(lanes: NDArray[np.float64]) -> float:
    total = 0.0
    for lane in lanes.tolist():
        total += lane
    return total

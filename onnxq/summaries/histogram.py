"""A histogram of constant size whose range grows with the data, and which merges exactly.

Bins have the width 2^e with one exponent e for all, and mirror each other: bin i ≥ 0 holds [i · 2^e, (i + 1) ·
2^e), bin -1 - i the same numbers with a minus sign, so that one histogram counts x and |x|. When a value falls
outside, e grows and neighbouring bins are added up. As bin borders of a larger e are borders of every smaller one,
the counts depend only on the values seen, not on their order nor on how they were split into batches.

Scaling by 2^-e is exact and what underflows is cut off anyway: every processor and every float type finds the same bin.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: Bins in use are at most this many; more than half of them are, whatever the data, once e has grown.
BINS = 4096
#: Numbers counted at once: as many as stay in the processor's cache.
CHUNK = 1 << 15
#: 2^-1074 is the smallest float64 above zero.
SMALLEST = -1074


class Histogram:
    """Counts of finite numbers, with their exact minimum and maximum.

    Attributes:
        exponent: e; the width of a bin is 2^e.
        first: index i of the first bin.
        counts: int64, one a bin, at most `BINS`.
    """

    def __init__(self) -> None:
        self.exponent = self.first = 0
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self.low, self.high = math.inf, -math.inf

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def update(self, x: NDArray) -> None:
        """Count the finite numbers `x`, of any float type."""
        if not x.size:
            return
        self._grow(float(x.min()), float(x.max()))
        # What float32 numbers become in float32 is exact as long as the factor itself is a float32.
        quick = x.dtype.itemsize <= 4 and abs(self.exponent) < 127
        for start in range(0, x.size, CHUNK):
            part: NDArray[np.floating] = x[start : start + CHUNK].astype(np.float32 if quick else np.float64)
            scaled = part * np.float32(2.0**-self.exponent) if quick else np.ldexp(part, -self.exponent)
            index = scaled.astype(np.intp) - (part < 0) - self.first
            self.counts += np.bincount(index, minlength=len(self.counts))

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        if other.counts.size:
            self._grow(other.low, other.high)
            self._add(other.counts, other.first, other.exponent)

    def coarsened(self, bins: int) -> Histogram:
        """The same numbers in at most so many bins, the width of which is the least that allows it.

        Args:
            bins: at least 2.
        """
        made = Histogram()
        if self.counts.size:
            made.low, made.high = self.low, self.high
            made.exponent = max(self.exponent, _least_exponent(self.low, self.high, bins))
            made.first = _bin(self.low, made.exponent)
            made.counts = np.zeros(_bin(self.high, made.exponent) - made.first + 1, np.int64)
            made._add(self.counts, self.first, self.exponent)
        return made

    @property
    def spans_its_range(self) -> bool:
        """Whether the bins are those from the lowest to the highest number."""
        if not self.counts.size:
            return True
        try:
            ends = _bin(self.low, self.exponent), _bin(self.high, self.exponent)
        except OverflowError:
            return False
        return ends == (self.first, self.first + len(self.counts) - 1)

    @property
    def width(self) -> float:
        """Of a bin."""
        return math.ldexp(1.0, self.exponent)

    def centers(self) -> NDArray[np.float64]:
        """The middle of each bin."""
        return (np.arange(len(self.counts), dtype=np.float64) + self.first + 0.5) * self.width

    def magnitudes(self) -> tuple[int, NDArray[np.int64]]:
        """The histogram of |x|: index j of its first bin [j · 2^e, (j + 1) · 2^e), and the counts."""
        if not self.counts.size:
            return 0, self.counts
        index = np.arange(len(self.counts)) + self.first
        index = np.where(index < 0, ~index, index)
        start = int(index.min())
        counts = np.zeros(int(index.max()) - start + 1, np.int64)
        np.add.at(counts, index - start, self.counts)
        return start, counts

    def _grow(self, low: float, high: float) -> None:
        """Make room for [low, high]. The new exponent depends on the whole range only, not on how it came about."""
        if self.low <= low and high <= self.high:
            return
        counts, first, exponent = self.counts, self.first, self.exponent
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.exponent = _least_exponent(self.low, self.high)
        self.first = _bin(self.low, self.exponent)
        self.counts = np.zeros(_bin(self.high, self.exponent) - self.first + 1, np.int64)
        if counts.size:
            self._add(counts, first, exponent)

    def _add(self, counts: NDArray[np.int64], first: int, exponent: int) -> None:
        """Add counts of bins that are no wider than ours and inside our range."""
        index = (np.arange(len(counts)) + first) >> min(self.exponent - exponent, 63)
        np.add.at(self.counts, index - self.first, counts)


def _bin(x: float, exponent: int) -> int:
    return math.trunc(math.ldexp(x, -exponent)) - (x < 0)


def _least_exponent(low: float, high: float, bins: int = BINS) -> int:
    """The smallest exponent for which [low, high] needs at most `bins` bins, numbered within 53 bits.

    It never falls when the range grows; zero alone gets the least one there is, that of the smallest subnormal.
    """
    largest = max(abs(low), abs(high))
    exponent = max(math.frexp(largest)[1] - 52, SMALLEST) if largest else SMALLEST
    if high > low:
        exponent = max(exponent, math.frexp(high - low)[1] - bins.bit_length())
    while _bin(high, exponent) - _bin(low, exponent) >= bins:
        exponent += 1
    return exponent

"""Error statistics of a quantized tensor against its float original, summed up piece by piece."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.analysis.representable import outside
from onnxq.analysis.slices import slices
from onnxq.formats import QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.quality import MAX_DB, UNEQUAL_DB, decibel
from onnxq.summaries.pair_sums import PairSums


@dataclass(frozen=True)
class ErrorStats:
    """How far quantized numbers are from the float ones. Errors are quantized minus float, in the weight's own unit.

    Attributes:
        count: numbers compared.
        mse, mean_abs, max_abs, bias: mean squared, mean absolute, largest absolute and mean error.
        sqnr: 10·log10(Σx² / Σe²) in dB, within ±`MAX_DB`; `MAX_DB` where there is no error.
        cosine: of the angle between both as vectors; 1 where both are zero.
        clipped: share of numbers beyond what their group's codes reach by more than half a step; 0…1.
        levels_used: share of the 2^bits codes that occur; 0…1.
        bits_per_weight: with scales and zero points; 32 where nothing was encoded.
    """

    count: int
    mse: float
    mean_abs: float
    max_abs: float
    bias: float
    sqnr: float
    cosine: float
    clipped: float = 0.0
    levels_used: float = 1.0
    bits_per_weight: float = 32.0

    @property
    def rmse(self) -> float:
        """The root of the mean squared error, in the weight's own unit."""
        return math.sqrt(self.mse)

    def to_dict(self) -> dict[str, float]:
        """Everything, `rmse` included."""
        return dataclasses.asdict(self) | {"rmse": self.rmse}


@dataclass
class ErrorSums(PairSums):
    """Sums over any number of pieces, in float64; `stats()` at any time, and `merge` for pieces summed elsewhere."""

    clipped: int = 0
    nbytes: int = 0
    bits: int = 0
    seen: set[int] = field(default_factory=set)

    def add_quantized(self, w: NDArray, q: QuantizedTensor) -> None:
        """Take in a weight, of any float type, and what it is in a number format.

        Args:
            w, q: of one shape.
        """
        for index, part in slices(q):
            x = w[index].astype(np.float32, copy=False)
            self.add(x, part.dequantize())
            self.clipped += int(np.count_nonzero(outside(x, part)))
            codes = np.ascontiguousarray(part.codes)
            self.seen.update(np.unique(codes.view(f"u{codes.dtype.itemsize}")).tolist())
        self.nbytes += q.nbytes
        self.bits = q.format.bits

    def merge(self, other: ErrorSums) -> None:
        """Take in what `other` has summed up."""
        self.largest = max(self.largest, other.largest)
        self.bits = self.bits or other.bits
        self.seen |= other.seen
        for name in (
            "count",
            "signal",
            "noise",
            "quantized",
            "product",
            "total",
            "absolute",
            "clipped",
            "nbytes",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def stats(self) -> ErrorStats:
        """The figures of everything taken in; those of nothing at all are those of no error."""
        n = max(1, self.count)
        return ErrorStats(
            count=self.count,
            mse=self.noise / n,
            mean_abs=self.absolute / n,
            max_abs=self.largest,
            bias=self.total / n,
            sqnr=self.sqnr,
            cosine=self.cosine,
            clipped=self.clipped / n,
            levels_used=len(self.seen) / 2**self.bits if self.bits else 1.0,
            bits_per_weight=8 * self.nbytes / n if self.nbytes else 32.0,
        )


def error_stats(wanted: ArrayLike, got: ArrayLike) -> ErrorStats:
    """The error of `got` against `wanted`: any two arrays of one shape.

    Args:
        wanted, got: arrays or nested lists of real numbers.

    Raises:
        ValueError: the shapes differ, or a number is not finite.

    >>> stats = error_stats([1.0, -2.0, 4.0], [1.0, -1.5, 4.0])
    >>> round(stats.mse, 4), stats.max_abs, round(stats.sqnr, 1)
    (0.0833, 0.5, 19.2)
    """
    x, y = arguments.numbers(wanted, "array 'wanted'"), arguments.numbers(got, "array 'got'")
    sums, scaled, errors = ErrorSums(), ErrorSums(), ErrorSums()
    with np.errstate(over="ignore"):
        sums.add(x, y)
    found, exponent = sums.stats(), _exponent(x, y)
    if not exponent:
        return found
    # Their squares are beyond float64, or too small for it: those of the numbers and of the errors are summed apart.
    x, y = (each.astype(np.float64) for each in (x, y))
    scaled.add(np.ldexp(x, -exponent), np.ldexp(y, -exponent))
    of_error = _exponent(y - x)
    errors.add(np.zeros_like(x), np.ldexp(y - x, -of_error))
    if found.max_abs:
        apart = 20 * math.log10(2) * (exponent - of_error)
        found = dataclasses.replace(
            found, sqnr=max(-MAX_DB, min(UNEQUAL_DB, decibel(scaled.signal, errors.noise) + apart))
        )
    return dataclasses.replace(found, cosine=scaled.cosine)


def _exponent(*arrays: NDArray) -> int:
    """By which power of two numbers are divided whose squares float64 does not hold; 0: their squares it does."""
    largest = max(float(np.abs(each).max(initial=0)) for each in arrays)
    return 0 if not largest or 1e-140 < largest < 1e140 or not math.isfinite(largest) else math.frexp(largest)[1]


def retention(in_float: float, quantized: float, *, higher_is_better: bool = True) -> float:
    """What is left of the float model's score, in percent; 100 is all of it, and more than 100 an improvement.

    Args:
        in_float, quantized: a positive score of each, such as accuracy; with `higher_is_better` False a loss, error
            rate or perplexity, whose reciprocal counts.

    Raises:
        ValueError: a score that a ratio says nothing about: the divisor is not above zero.
    """
    part, whole = (quantized, in_float) if higher_is_better else (in_float, quantized)
    if not whole > 0 or not math.isfinite(whole) or not math.isfinite(part):
        raise ValueError(f"retention needs scores above zero, not {in_float:g} and {quantized:g}")
    return 100 * part / whole

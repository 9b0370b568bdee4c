"""Power of the float numbers of an output and of the error, summed by range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxq.quality.decisions import is_text, scores_beside
from onnxq.quality.ranges import ranges

#: Share of the usual signal that the signal of a label counts as, however weak it is: errors on near silence that
#: nobody could see in an output's usual range are no errors.
FAINT = 0.05


@dataclass
class Power:
    """Sums over all samples of one output: squares and plain sum of the float numbers, squares of the differences.

    Attributes:
        others: those of huge and of tiny numbers, by the power of two that these are over, which `ranges` says.
    """

    signal: float = 0.0
    total: float = 0.0
    count: int = 0
    noise: float = 0.0
    mismatch: bool = False
    others: dict[int, Power] = field(default_factory=dict)

    @property
    def variation(self) -> float:
        """Sum of squared deviations from the mean; of one single number, its square."""
        if self.count < 2:
            return self.signal
        return max(0.0, self.signal - self.total * (self.total / self.count))  # a power would not overflow to infinity

    def add(self, wanted: NDArray, got: NDArray) -> None:
        """Take in numbers, all finite in the first array."""
        for by, x, y in ranges(wanted, got):
            a, b = x.astype(np.float64), y.astype(np.float64)
            power = self if by == 0 else self.others.setdefault(by, Power())
            power.signal += float(np.sum(a * a))
            power.total += float(np.sum(a))
            power.count += a.size
            power.noise += float(np.sum((a - b) ** 2)) if np.isfinite(b).all() else math.inf

    def parts(self, usual: float) -> Iterator[tuple[Power, float]]:
        """Sums of each range, and the least that their signal counts as.

        Beside any others, tiny numbers are silence: an error of them is none that could be told.

        Args:
            usual: of the output, mean square of a number, or variance.
        """
        least = FAINT * usual * max(1, self.count)
        yield self, least
        is_heard = bool(least or self.signal or any(power.signal for by, power in self.others.items() if by > 0))
        for by, power in self.others.items():
            yield power, math.inf if by < 0 and is_heard else 0.0

    def merge(self, other: Power) -> None:
        """Take in the sums of other samples."""
        self.signal += other.signal
        self.total += other.total
        self.count += other.count
        self.noise += other.noise
        self.mismatch |= other.mismatch
        for by, power in other.others.items():
            self.others.setdefault(by, Power()).merge(power)


def add_output(outputs: dict[str, Power], name: str, wanted: Sequence[NDArray], got: Sequence[NDArray]) -> None:
    """Take in the arrays of one sample's output, and those of the float model, under the output's name."""
    both = list(zip(wanted, got, strict=False))
    if len(wanted) != len(got) or any(x.shape != y.shape or is_text(x) != is_text(y) for x, y in both):
        outputs.setdefault(name, Power()).mismatch = True
        return
    for part, x, y in _parted(name, wanted, got):
        if x.dtype.kind not in "fV" or not x.size:
            continue
        known = np.isfinite(x.astype(np.float64, copy=False))
        if known.any():
            outputs.setdefault(part, Power()).add(x[known], y[known])


def _parted(name: str, wanted: Sequence[NDArray], got: Sequence[NDArray]) -> Iterator[tuple[str, NDArray, NDArray]]:
    """Arrays of one output; scores beside larger numbers by themselves, under a name that says so."""
    for x, y in zip(wanted, got, strict=True):
        axis, scores = scores_beside(x) or (0, None)
        if scores is None:
            yield name, x, y
            continue
        for part, kept in ((f"{name} (scores)", scores), (name, ~scores)):
            yield part, np.compress(kept, x, axis), np.compress(kept, y, axis)

"""Which SQNR to aim at, so that a score which only the user can measure falls by no more than it may."""

from __future__ import annotations

from dataclasses import dataclass

#: Files that are scored, at most: a score may take long.
EVALUATIONS = 6
#: dB by which the aim rises after each failure, and how near to the best aim is near enough.
STEP, NEAR = 6.0, 2.0


@dataclass
class AimSearch:
    """Rises until a plan passes, then halves the distance to the last one that failed.

    Attributes:
        failed, passed: the highest SQNR in dB that failed and the lowest that passed, as far as any did.
        count: plans that were told of.
    """

    failed: float | None = None
    passed: float | None = None
    count: int = 0

    def tell(self, sqnr: float, *, passes: bool) -> None:
        """What became of a plan of this SQNR."""
        self.count += 1
        if passes:
            self.passed = sqnr if self.passed is None else min(self.passed, sqnr)
        else:
            self.failed = sqnr if self.failed is None else max(self.failed, sqnr)

    def next(self) -> float | None:
        """The SQNR to aim at now; None where nothing more is worth a try."""
        if self.count >= EVALUATIONS or self.failed is None:
            return None
        if self.passed is None:
            return self.failed + STEP
        return (self.failed + self.passed) / 2 if self.passed - self.failed > NEAR else None

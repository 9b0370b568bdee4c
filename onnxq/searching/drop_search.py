"""How much harm a plan may do so that its score falls by no more than it may: found in few evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Plans that are scored, at most: a score may take long.
EVALUATIONS = 8
#: Levels of harm nearer than this factor to each other are not told apart.
NEAR = 1.15


@dataclass
class DropSearch:
    """Halves, in their logarithms, the levels between the highest that passed and the lowest that failed.

    Attributes:
        low, high: harm of the model with its longest and with its shortest options.
    """

    low: float
    high: float
    passed: float | None = None
    failed: float | None = None
    count: int = 0

    def tell(self, level: float, *, passes: bool) -> None:
        """What became of the smallest plan of this level."""
        self.count += 1
        if passes:
            self.passed = level if self.passed is None else max(self.passed, level)
        else:
            self.failed = level if self.failed is None else min(self.failed, level)

    def next(self) -> float | None:
        """The level to try now; None where nothing more is worth a try. The first is the middle."""
        if self.count >= EVALUATIONS:
            return None
        low = self.low if self.passed is None else self.passed
        high = self.high if self.failed is None else self.failed
        if self.count and self.passed is not None and high <= NEAR * low:
            return None
        if self.failed is None and self.count == 1:
            return self.high
        return math.sqrt(max(low, 1e-12) * max(high, 1e-12))

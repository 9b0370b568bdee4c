"""The best plan within a bound: solved exactly for what single layers do, then corrected for what they do together.

The sum of what layers do one by one is not what they do together. So a solution is measured, and so is what each of its
layers would change from there by one step up or down; for these differences the problem is solved anew, and what comes
of it is kept if it measures better. If it does not, fewer layers may change at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.plan import Plan
from onnxq.progress import Progress
from onnxq.searching.knapsack import Bound, solve
from onnxq.searching.meter import Figures, Meter
from onnxq.searching.options import Unit, selected
from onnxq.searching.sensitivity import Sensitivity

#: Corrections of a solution at most, and by how much fewer units may change after one that did no good.
ROUNDS, FEWER = 6, 3


@dataclass(frozen=True)
class Solution:
    """One option of each unit, measured."""

    chosen: tuple[int, ...]
    figures: Figures

    @property
    def harm(self) -> float:
        return self.figures.harm


@dataclass
class Search:
    """Finds solutions for one model.

    Attributes:
        base: a plan with every unit in some form, and with what is not chosen for.
    """

    meter: Meter
    base: Plan
    units: Sequence[Unit]
    sensitivity: Sensitivity
    progress: Progress

    def plan(self, chosen: Sequence[int]) -> Plan:
        return selected(self.base, self.units, chosen)

    def measured(self, chosen: Sequence[int]) -> Solution:
        return Solution(tuple(chosen), self.meter.figures(self.plan(chosen)))

    def least_harm(self, bounds: Sequence[Bound]) -> Solution | None:
        """The least harm within `bounds`, as single layers tell; None: nothing is within them."""
        chosen = solve(self.sensitivity.added, bounds)
        return None if chosen is None else self.measured(chosen)

    def least_bytes(self, harm: float) -> Solution | None:
        """The fewest bytes with a harm of at most so much, as single layers tell."""
        bound = Bound(self.sensitivity.added, harm - self.sensitivity.floor)
        chosen = solve([unit.costs for unit in self.units], [bound])
        return None if chosen is None else self.measured(chosen)

    def corrected(self, solution: Solution, bounds: Sequence[Bound], runs: int) -> Solution:
        """`solution`, or a better one within the same bounds, found in at most so many runs."""
        until = self.meter.left - runs
        for _ in range(ROUNDS):
            if self.meter.left - until < 2 * len(self.units) or self.meter.left < 2 * len(self.units):
                break
            better = self._corrected_once(solution, bounds)
            if better is None:
                break
            solution = better
        return solution

    def _corrected_once(self, solution: Solution, bounds: Sequence[Bound]) -> Solution | None:
        self.progress.start("measuring how layers interact", 2 * len(self.units))
        values = [self._differences(solution, unit) for unit in range(len(self.units))]
        changes = len(self.units)
        while changes and self.meter.left:
            moved = [np.ones(len(each)) for each in values]
            for each, i in zip(moved, solution.chosen, strict=True):
                each[i] = 0.0
            chosen = solve(values, [*bounds, Bound(moved, changes)])
            if chosen is None or tuple(chosen) == solution.chosen:
                return None
            found = self.measured(chosen)
            if found.harm < solution.harm:
                return found
            changes = sum(a != b for a, b in zip(chosen, solution.chosen, strict=True)) // FEWER
        return None

    def _differences(self, solution: Solution, unit: int) -> NDArray[np.float64]:
        """What each option of a unit would change in the harm of `solution`: its neighbours measured, those beyond in
        proportion to what they do alone."""
        alone, here = self.sensitivity.added[unit], solution.chosen[unit]
        expected = alone - alone[here]
        found = expected.copy()
        for step in (-1, 1):
            beside = here + step
            if not 0 <= beside < len(alone):
                continue
            chosen = list(solution.chosen)
            chosen[unit] = beside
            measured = self.measured(chosen).harm - solution.harm
            ratio = measured / expected[beside] if expected[beside] * measured > 0 else 1.0
            beyond = slice(0, here) if step < 0 else slice(here + 1, None)
            found[beyond] = expected[beyond] * ratio
            found[beside] = measured
        return found

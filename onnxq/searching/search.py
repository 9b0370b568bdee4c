"""The best plan within a bound: solved exactly for what single layers do, then corrected for what they do together.

The sum of what layers do one by one is not what they do together. So a solution is measured, and so is what each of its
layers would change from there by one step up or down; for these differences the problem is solved anew, and what comes
of it is kept if it measures better. If it does not, fewer layers may change at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
#: Steps that are worth measuring.
LEAST_STEPS = 4


#: Whether a choice may be taken.
Fits = Callable[[Sequence[int]], bool]


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
        uniform: choices that are worth measuring whatever single layers tell: the same for all units.
    """

    meter: Meter
    base: Plan
    units: Sequence[Unit]
    sensitivity: Sensitivity
    progress: Progress
    uniform: Sequence[tuple[int, ...]] = ()
    _solutions: dict[tuple[int, ...], Solution] = field(default_factory=dict)

    def plan(self, chosen: Sequence[int]) -> Plan:
        return selected(self.base, self.units, chosen)

    def measured(self, chosen: Sequence[int]) -> Solution:
        found = Solution(tuple(chosen), self.meter.figures(self.plan(chosen)))
        return self._solutions.setdefault(found.chosen, found)

    def least_harm(self, bounds: Sequence[Bound], fits: Fits | None = None) -> Solution | None:
        """The least harm within `bounds`, as single layers tell, or of the `uniform` choices and whatever was measured
        before, if one of these is better; None: nothing is within them.

        Args:
            fits: whether a uniform choice may be taken, where more is known of it than `bounds` say.
        """
        chosen = solve(self.sensitivity.added, bounds)
        known = [each for each in self._solutions if within(bounds, each)]
        even = [each for each in self.uniform if (fits(each) if fits else within(bounds, each))]
        found = [*([] if chosen is None else [tuple(chosen)]), *even, *known]
        self.meter.measure(map(self.plan, found))
        return min(map(self.measured, found), key=lambda solution: solution.harm, default=None)

    def least_bytes(self, harm: float) -> Solution | None:
        """The fewest bytes with a harm of at most so much, as single layers tell."""
        bound = Bound(self.sensitivity.added, harm - self.sensitivity.floor)
        chosen = solve([unit.costs for unit in self.units], [bound])
        return None if chosen is None else self.measured(chosen)

    def corrected(self, solution: Solution, bounds: Sequence[Bound], runs: int) -> Solution:
        """`solution`, or a better one within the same bounds, found in about so many runs."""
        until = max(0, self.meter.left - runs)
        for done in range(ROUNDS):
            left = self.meter.left - until
            steps = min(2 * len(self.units), left // 2 if done < ROUNDS - 1 else left)
            if steps < LEAST_STEPS:
                break
            better = self._corrected_once(solution, bounds, steps)
            if better is None:
                break
            solution = better
        return solution

    def _corrected_once(self, solution: Solution, bounds: Sequence[Bound], steps: int) -> Solution | None:
        values = self._differences(solution, steps)
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

    def _differences(self, solution: Solution, steps: int) -> list[NDArray[np.float64]]:
        """What each option of each unit would change in the harm of `solution`.

        So many steps up or down are measured, of which most is expected; what lies beyond a step changes in proportion,
        and what was not measured as the others of its direction did.
        """
        alone = [added - added[here] for added, here in zip(self.sensitivity.added, solution.chosen, strict=True)]
        sides = [
            (unit, step)
            for unit, here in enumerate(solution.chosen)
            for step in (-1, 1)
            if 0 <= here + step < len(alone[unit])
        ]
        sides.sort(key=lambda side: -abs(alone[side[0]][solution.chosen[side[0]] + side[1]]))
        self.progress.start("measuring how layers interact", min(steps, len(sides)))
        moved: dict[tuple[int, int], list[int]] = {}
        for unit, step in sides[:steps]:
            moved[unit, step] = list(solution.chosen)
            moved[unit, step][unit] += step
        self.meter.measure(map(self.plan, moved.values()))
        measured = {side: self.measured(chosen).harm - solution.harm for side, chosen in moved.items()}
        ratios: dict[tuple[int, int], float] = {}
        for (unit, step), change in measured.items():
            expected = float(alone[unit][solution.chosen[unit] + step])
            if expected * change > 0:
                ratios[unit, step] = change / expected
        usual = {s: _median([r for (_, step), r in ratios.items() if step == s]) for s in (-1, 1)}
        found = [each.copy() for each in alone]
        for unit, step in sides:
            here = solution.chosen[unit]
            beyond = slice(0, here) if step < 0 else slice(here + 1, None)
            found[unit][beyond] *= ratios.get((unit, step), usual[step])
            if (unit, step) in measured:
                found[unit][here + step] = measured[unit, step]
        return found


def within(bounds: Sequence[Bound], chosen: Sequence[int]) -> bool:
    """Whether these options keep all `bounds`."""
    return all(bound.keeps(chosen) for bound in bounds)


def _median(ratios: Sequence[float]) -> float:
    return float(np.median(ratios)) if ratios else 1.0

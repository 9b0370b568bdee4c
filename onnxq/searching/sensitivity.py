"""How much each option of each unit harms the model's outputs, from a bounded number of runs.

1. A run is of the whole model with one unit in one option and all others in their longest. What it adds to the harm is
   measured, where there are runs enough for every unit and option.
2. Where there are not, the options measured are those of the fewest bits, then some between; the others are worked
   out: in proportion to the error of the layer's own outputs, which is known in closed form (`layer_errors.py`), from
   the nearest option that was measured.
3. Of models with more units than runs, neighbours are measured together and share what they add by the same errors.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.plan import Plan
from onnxq.progress import Progress
from onnxq.searching.meter import Meter
from onnxq.searching.options import Unit, selected

#: The error of a unit in one of its options, by their numbers.
Errors = Callable[[int, int], float]


@dataclass
class Sensitivity:
    """
    Attributes:
        floor: harm of the model with every unit in its longest form.
        added: by unit and option, what that adds.
        measured: how many of these were measured.
    """

    floor: float
    added: list[NDArray[np.float64]]
    measured: int

    def harm(self, chosen: Sequence[int]) -> float:
        """What all together are expected to do."""
        return self.floor + sum(float(added[i]) for added, i in zip(self.added, chosen, strict=True))


def measure(
    meter: Meter, base: Plan, units: Sequence[Unit], runs: int, errors: Errors, progress: Progress
) -> Sensitivity:
    """
    Args:
        base: with every unit in its longest form.
        runs: plans to measure at most.
    """
    size = max(1, math.ceil(len(units) / max(1, runs - 1)))
    groups = [range(i, min(i + size, len(units))) for i in range(0, len(units), size)]
    progress.start("measuring which layers need their bits", min(runs, sum(len(unit.options) for unit in units)))
    several = list(_to_measure(units, groups, runs - 1))

    def plan(group: range, options: tuple[int, ...]) -> Plan:
        return selected(base, [units[unit] for unit in group], options)

    meter.measure(itertools.chain([base], itertools.starmap(plan, several)))
    floor = meter.figures(base).harm
    known: list[dict[int, float]] = [{0: 0.0} for _ in units]
    for group, options in several:
        added = max(0.0, meter.figures(plan(group, options)).harm - floor)
        shares = [errors(unit, option) for unit, option in zip(group, options, strict=True)] if size > 1 else [1.0]
        for unit, option, share in zip(group, options, shares, strict=True):
            known[unit][option] = added * share / (sum(shares) or 1.0)
    measured = sum(len(each) - 1 for each in known) if size == 1 else 0
    completed = [_completed(known[i], len(unit.options), functools.partial(errors, i)) for i, unit in enumerate(units)]
    return Sensitivity(floor, completed, measured)


def _to_measure(units: Sequence[Unit], groups: Sequence[range], most: int) -> Iterator[tuple[range, tuple[int, ...]]]:
    """(group, an option of each of its units), each once, at most so many."""
    seen: list[set[int]] = [{0} for _ in units]
    for group, column in _in_turn(units, groups):
        options = tuple(min(column, len(units[unit].options) - 1) for unit in group)
        if all(option in seen[unit] for unit, option in zip(group, options, strict=True)):
            continue
        if most <= 0:
            return
        most -= 1
        for unit, option in zip(group, options, strict=True):
            seen[unit].add(option)
        yield group, options


def _in_turn(units: Sequence[Unit], groups: Sequence[range]) -> Iterator[tuple[range, int]]:
    """(group, option), those first that tell most: the last option of all, the middle one, then the others."""
    most = max((len(unit.options) for unit in units), default=1)
    columns = dict.fromkeys((most - 1, most // 2, *range(most - 2, 0, -1)))
    for column in columns:
        for group in groups:
            # Options are counted from the end, where those of the fewest bits are.
            longest = max(len(units[unit].options) for unit in group)
            option = longest - (most - column)
            if option > 0:
                yield group, option


def _completed(known: dict[int, float], count: int, error: Callable[[int], float]) -> NDArray[np.float64]:
    """What was measured, and for the rest what follows from the layer's own errors."""
    found = np.zeros(count)
    measured = sorted(option for option in known if option)
    for option in range(1, count):
        if option in known:
            found[option] = known[option]
        elif measured:
            nearest = min(measured, key=lambda other: (abs(other - option), -other))
            ratio = error(option) / max(error(nearest), 1e-300)
            found[option] = known[nearest] * ratio
    return found

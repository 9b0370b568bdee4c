"""One option of each unit, so that the sum of one thing is least and the sums of others stay within bounds: exactly.

A multiple-choice knapsack, solved as an integer program by HiGHS (`highspy`). What the solver allows itself in rounding
is taken back: sums are checked here in the numbers that were given, and a bound that is missed by a hair is drawn
tighter.

Source: Kellerer, Pferschy, Pisinger, Knapsack Problems (2004), chapter 11.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadRecipe

#: A bound in the solver's units: its tolerance of 1e-7 of them is then one of 1e-10 of the bound.
SCALE = 1e3
#: By what share a bound is drawn tighter where the solver's rounding missed it, and how often.
TIGHTER, ATTEMPTS = 1e-9, 12


@dataclass(frozen=True)
class Bound:
    """The sum of `costs`, by unit and option, may not be more than `most`."""

    costs: Sequence[NDArray[np.float64]]
    most: float

    def total(self, chosen: Sequence[int]) -> float:
        """What these options cost together."""
        return sum(float(costs[i]) for costs, i in zip(self.costs, chosen, strict=True))

    def keeps(self, chosen: Sequence[int]) -> bool:
        """Whether these options are within the bound."""
        return self.total(chosen) <= self.most


def require_solver() -> Any:
    """
    Raises:
        BadRecipe: highspy is not installed.
    """
    try:
        return importlib.import_module("highspy")
    except ImportError:
        raise BadRecipe("a search under a budget needs highspy: pip install 'onnxq[search]'") from None


def solve(values: Sequence[NDArray[np.float64]], bounds: Sequence[Bound]) -> list[int] | None:
    """The option of each unit for which the sum of `values` is least within all `bounds`; None: nothing is within them.

    Args:
        values: by unit and option, as in each bound; any finite numbers.
    """
    tight = [bound.most for bound in bounds]
    for _ in range(ATTEMPTS):
        chosen = _solved(values, bounds, tight)
        if chosen is None:
            return None
        sums = [bound.total(chosen) for bound in bounds]
        missed = [total > bound.most for total, bound in zip(sums, bounds, strict=True)]
        if not any(missed):
            return chosen
        tight = [
            min(each, bound.most) - (abs(bound.most) * TIGHTER + (total - bound.most)) * is_missed
            for each, bound, total, is_missed in zip(tight, bounds, sums, missed, strict=True)
        ]
    return None


def _solved(values: Sequence[NDArray[np.float64]], bounds: Sequence[Bound], most: Sequence[float]) -> list[int] | None:
    highs = require_solver()
    solver = highs.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),  # the same result everywhere
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.0),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(_model(highs, values, bounds, most))
    solver.run()
    if solver.getModelStatus() != highs.HighsModelStatus.kOptimal:
        return None
    x = np.asarray(solver.getSolution().col_value)
    starts = _starts(values)
    return [int(np.argmax(x[a:b])) for a, b in itertools.pairwise(starts)]


def _starts(values: Sequence[NDArray[np.float64]]) -> list[int]:
    return [0, *np.cumsum([len(each) for each in values]).tolist()]


def _model(highs: Any, values: Sequence[NDArray[np.float64]], bounds: Sequence[Bound], most: Sequence[float]) -> Any:
    """A binary variable for each option; one row a unit, whose variables add up to 1, and one a bound."""
    starts, units = _starts(values), len(values)
    count, rows = starts[-1], units + len(bounds)
    indices = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    entries = [np.ones(len(each)) for each in indices]
    lower, upper = np.ones(rows), np.ones(rows)
    for row, (bound, limit) in enumerate(zip(bounds, most, strict=True), units):
        costs, least = _above_least(bound.costs)
        unit = float(costs.max(initial=0.0)) or 1.0
        indices.append(np.flatnonzero(costs))
        entries.append(costs[indices[-1]] / unit * SCALE)
        lower[row], upper[row] = -highs.kHighsInf, (limit - least) / unit * SCALE
    objective, _ = _above_least(values)
    model = highs.HighsLp()
    model.num_col_, model.num_row_ = count, rows
    model.col_cost_ = objective / (float(objective.max(initial=0.0)) or 1.0) * SCALE
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    model.row_lower_, model.row_upper_ = lower, upper
    model.integrality_ = [highs.HighsVarType.kInteger] * count
    model.a_matrix_.format_ = highs.MatrixFormat.kRowwise
    model.a_matrix_.num_col_, model.a_matrix_.num_row_ = count, rows
    model.a_matrix_.start_ = np.cumsum([0, *map(len, indices)]).astype(np.int32)
    model.a_matrix_.index_ = np.concatenate(indices).astype(np.int32)
    model.a_matrix_.value_ = np.concatenate(entries)
    return model


def _above_least(each: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], float]:
    """Costs counted from the least of each unit, one behind the other, and the sum of the least: what every choice has
    in common is no question."""
    least = [float(costs.min()) for costs in each]
    return np.concatenate([costs - low for costs, low in zip(each, least, strict=True)]), sum(least)

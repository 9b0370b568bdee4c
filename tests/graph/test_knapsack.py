"""The exact solution of a search, its bounds, and the words of a budget."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import BadRecipe
from onnxq.searching import budget
from onnxq.searching.drop_search import EVALUATIONS, DropSearch
from onnxq.searching.knapsack import Bound, solve

pytest.importorskip("highspy")

amounts = st.floats(0, 1e6).map(lambda x: round(x, 3))
tables = st.lists(st.lists(st.tuples(amounts, st.integers(0, 10**7)), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(tables, st.floats(0, 1.1), st.floats(0, 1.1))
def test_the_solver_finds_what_trying_everything_finds(
    table: list[list[tuple[float, int]]], share: float, other: float
) -> None:
    values = [np.array([value for value, _ in unit]) for unit in table]
    costs = [np.array([cost for _, cost in unit], np.float64) for unit in table]
    bounds = [Bound(costs, share * sum(map(max, costs))), Bound(values[::1], other * sum(map(max, values)))]

    def total(of: Sequence[np.ndarray], chosen: Sequence[int]) -> float:
        return sum(float(each[i]) for each, i in zip(of, chosen, strict=True))

    every = itertools.product(*(range(len(unit)) for unit in table))
    legal = [chosen for chosen in every if all(total(b.costs, chosen) <= b.most for b in bounds)]
    found = solve(values, bounds)
    if not legal:
        assert found is None
        return
    best = min(total(values, chosen) for chosen in legal)
    assert found is not None and all(total(b.costs, found) <= b.most for b in bounds)
    assert total(values, found) <= best + 1e-6 * max(1.0, max(float(max(unit)) for unit in values))


def test_a_bound_is_kept_to_the_last_byte() -> None:
    costs = [np.array([1e9 + 1, 1e9]), np.array([7.0, 3.0])]
    values = [np.array([0.0, 1.0]), np.array([0.0, 2.0])]
    assert solve(values, [Bound(costs, 1e9 + 7)]) == [1, 0]
    assert solve(values, [Bound(costs, 1e9 + 8)]) == [0, 0]
    assert solve(values, [Bound(costs, 1e9 + 2)]) is None


@given(st.text(max_size=20))
def test_any_text_is_a_budget_or_one_sentence(text: str) -> None:
    try:
        found = budget.parse_budget(text)
    except BadRecipe:
        return
    assert found == budget.parse_budget(str(found))


@given(st.floats(1e-6, 1), st.floats(1, 100))
def test_the_search_for_a_drop_ends_near_what_is_allowed(allowed: float, high: float) -> None:
    found = DropSearch(1e-6, high)
    best = None
    while (level := found.next()) is not None:
        found.tell(level, passes=level <= allowed)
        best = max(best or 0.0, level) if level <= allowed else best
    assert found.count <= EVALUATIONS
    assert best is None or found.count == EVALUATIONS or found.failed is None or found.failed <= 1.2 * best

"""The cut found is a cheapest one: against trying every labelling of small random problems."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.tuning.mincut import Cut

Nodes = list[tuple[float, float]]
Pairs = list[tuple[int, int, float]]


def cost_of(first: set[int], nodes: Nodes, pairs: Pairs) -> float:
    own = sum(costs[0] if i in first else costs[1] for i, costs in enumerate(nodes))
    return own + sum(cost for a, b, cost in pairs if a in first and b not in first)


def solve(nodes: Nodes, pairs: Pairs) -> set[int]:
    cut = Cut()
    for i, (first, second) in enumerate(nodes):
        cut.cost(i, first=first, second=second)
    for a, b, cost in pairs:
        cut.apart(a, b, cost)
    return cut.first_side()  # type: ignore[return-value]


def least(nodes: Nodes, pairs: Pairs) -> float:
    sides = itertools.product([False, True], repeat=len(nodes))
    return min(cost_of(set(itertools.compress(range(len(nodes)), side)), nodes, pairs) for side in sides)


@st.composite
def problems(draw: st.DrawFn, *, numbers: st.SearchStrategy) -> tuple[Nodes, Pairs]:
    count = draw(st.integers(1, 7))
    index = st.integers(0, count - 1)
    nodes = draw(st.lists(st.tuples(numbers, numbers), min_size=count, max_size=count))
    pairs = draw(st.lists(st.tuples(index, index, numbers.map(abs)), max_size=12))
    return nodes, pairs


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(numbers=st.integers(-5, 9)))
def test_no_labelling_of_whole_costs_is_cheaper(problem: tuple[Nodes, Pairs]) -> None:
    assert cost_of(solve(*problem), *problem) == least(*problem)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems(numbers=st.floats(-1e-3, 1e-3)))
def test_no_labelling_of_small_costs_is_cheaper(problem: tuple[Nodes, Pairs]) -> None:
    # Each of at most 19 edges may keep up to 1e-15 of its room unused.
    assert cost_of(solve(*problem), *problem) == pytest.approx(least(*problem), rel=1e-9, abs=1e-13)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems(numbers=st.sampled_from([0, 1, 2, math.inf])))
def test_impossible_combinations_are_never_chosen(problem: tuple[Nodes, Pairs]) -> None:
    nodes = [(a, b) if math.isfinite(min(a, b)) else (1, 2) for a, b in problem[0]]
    pairs = problem[1]
    if math.isinf(least(nodes, pairs)):
        with pytest.raises(ValueError, match="no labelling has a finite cost"):
            solve(nodes, pairs)
    else:
        assert cost_of(solve(nodes, pairs), nodes, pairs) == least(nodes, pairs)


def test_costs_of_a_node_add_up() -> None:
    cut = Cut()
    cut.cost("a", first=3, second=0)
    cut.cost("a", first=0, second=2)
    cut.cost("b", first=1, second=0)
    cut.cost("b", first=0, second=2)
    assert cut.first_side() == {"b"}


def test_a_pair_is_dear_in_one_direction_only() -> None:
    for dear, wanted in ((("a", "b"), set()), (("b", "a"), {"a"})):
        cut = Cut()
        cut.cost("a", first=0, second=1)
        cut.cost("b", first=math.inf, second=0)
        cut.apart(*dear, 5)
        assert cut.first_side() == wanted


def test_a_long_chain_needs_no_recursion() -> None:
    cut = Cut()
    cut.cost(0, first=0, second=10)
    cut.cost(5000, first=10, second=0)
    for i in range(5000):
        cut.apart(i, i + 1, 1 if i == 3000 else 2)
    assert cut.first_side() == set(range(3001))


def test_no_nodes() -> None:
    assert Cut().first_side() == set()

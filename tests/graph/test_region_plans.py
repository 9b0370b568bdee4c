"""Plans of products in regions: a function between two is int8 with them, or not at all."""

from __future__ import annotations

import itertools

import pytest
import tiny
from tiny import normal

from onnxq import targets
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.plan import Method, Plan
from onnxq.planning import int8_regions
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.tuning.costs import Costs, cheapest

BLOCK = "[a] p = MatMul(x, w1)  [b] u = Add(p, b1)  [c] v = Tanh(u)  [d] q = MatMul(v, w2)  [e] z = Add(b2, q)"
WEIGHTS = {"w1": normal(32, 48), "w2": normal(48, 32), "b1": normal(48), "b2": normal(32)}
MADE = tiny.read(tiny.model(f"g (float[n,t,32] x) => (float[n,t,32] z) {{ {BLOCK} }}", WEIGHTS))
prepare(MADE)
PRICES = {"x": 1.0, "u": 0.5, "v": 1.5}


def plan_for(target: str) -> Plan:
    return make_plan(MADE, Recipe("w8a8"), targets.get(target), infer_types(MADE))


@pytest.mark.parametrize("target", ["onnxq", "ort-cpu"])
def test_what_lies_between_products_is_int8_in_regions(target: str) -> None:
    plan = plan_for(target)
    static = {choice.node for choice in plan.those(Method.STATIC)}
    assert static == ({"a", "c", "d"} if target == "onnxq" else {"a", "d"})
    assert int8_regions.int8_makers(MADE, plan) == ({"a", "c"} if target == "onnxq" else set())


def test_the_cheapest_plan_is_the_cheapest_of_all() -> None:
    """Compared with every assignment, whatever the times of the products are."""
    full = plan_for("onnxq")
    kinds = [set(some) for n in range(4) for some in itertools.combinations("acd", n)]
    possible = [kept for kept in kinds if "c" not in kept or "a" in kept]  # which makes what it reads
    for floats in itertools.product([1.0, 4.0], [1.0], [1.0, 4.0]):
        for times in itertools.product([0.5, 3.0], repeat=3):
            in_float, quantized = dict(zip("acd", floats, strict=True)), dict(zip("acd", times, strict=True))
            costs = Costs(in_float, quantized, PRICES, sum(floats))
            found = {choice.node for choice in cheapest(MADE, full, costs, {}).those(Method.STATIC)}
            assert _cost(found, costs) == pytest.approx(min(_cost(kept, costs) for kept in possible))


def _cost(kept: set[str], costs: Costs) -> float:
    """Seconds of the nodes, of which `kept` are int8, and of conversions."""
    nodes = sum((costs.quantized_seconds if node in kept else costs.float_seconds)[node] for node in "acd")
    a, c, d = (node in kept for node in "acd")
    return nodes + a * PRICES["x"] + (a != c) * PRICES["u"] + (c != d) * PRICES["v"]

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
    return nodes + a * PRICES["x"] + (c > a) * PRICES["u"] + (c != d) * PRICES["v"]


ROW = "[a] p = MatMul(x, w1)  [ra] u = Relu(p)  [b] q = MatMul(u, w2)  [rb] v = Relu(q)  [c] z = MatMul(v, w3)"
LAYERS = tiny.read(
    tiny.model(
        f"g (float[n,32] x) => (float[n,8] z) {{ {ROW} }}",
        {"w1": normal(32, 48), "w2": normal(48, 32), "w3": normal(32, 8)},
    )
)
prepare(LAYERS)


def test_products_in_a_row_hand_on_codes() -> None:
    """Without a conversion between two that are int8, nor behind one whose only reader is in float."""
    full = make_plan(LAYERS, Recipe("w8a8"), targets.get("onnxq"), infer_types(LAYERS))
    assert int8_regions.int8_makers(LAYERS, full) == {"a", "b"}
    prices = {"x": 1.0, "u": 2.0, "v": 2.0}
    possible = [set(some) for n in range(4) for some in itertools.combinations("abc", n)]
    for times in itertools.product([0.2, 1.1, 3.0], repeat=3):
        costs = Costs(dict.fromkeys("abc", 1.0), dict(zip("abc", times, strict=True)), prices, 3.0)

        def cost(kept: set[str], costs: Costs = costs) -> float:
            nodes = sum((costs.quantized_seconds if node in kept else costs.float_seconds)[node] for node in "abc")
            a, b, c = (node in kept for node in "abc")
            return nodes + a * prices["x"] + (b > a) * prices["u"] + (c > b) * prices["v"]

        found = {choice.node for choice in cheapest(LAYERS, full, costs, {}).those(Method.STATIC)}
        assert cost(found) == pytest.approx(min(cost(kept) for kept in possible))


def test_a_product_that_others_read_in_float_makes_floats() -> None:
    row = f"{ROW}  [s] y = Sigmoid(u)"
    weights = {"w1": normal(32, 48), "w2": normal(48, 32), "w3": normal(32, 8)}
    made = tiny.read(tiny.model(f"g (float[n,32] x) => (float[n,8] z, float[n,48] y) {{ {row} }}", weights))
    prepare(made)
    assert int8_regions.int8_makers(made, make_plan(made, Recipe("w8a8"), targets.get("onnxq"), infer_types(made))) == {
        "b"
    }

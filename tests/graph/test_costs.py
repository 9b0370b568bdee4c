"""Which nodes become int8, decided on made-up costs; and the minimum cut behind it, compared with trying everything."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from tiny import normal

from onnxq import targets
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.plan import COMPUTING, Plan
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.runtime.kernel_times import Kernel, original_name
from onnxq.tuning.costs import Costs, attribute_costs, cheapest, predicted_seconds, unfused
from onnxq.tuning.mincut import Cut

CHAIN = "[a] u = Conv(x, f)  [b] v = Conv(u, f)  [c] w = Conv(v, f)  [d] z = Conv(w, f)"


def static_plan(body: str = CHAIN) -> tuple[object, Plan]:
    made = tiny.read(tiny.model(f"g (float[1,16,8,8] x) => (z) {{ {body} }}", {"f": normal(16, 16, 1, 1)}))
    prepare(made)
    return made, make_plan(made, Recipe("w8a8"), targets.get("ort-cpu"), infer_types(made))


def int8(body: str, gain: dict[str, float], conversion: float = 1.0, harm: dict[str, float] | None = None) -> str:
    """Names of the nodes that stay int8 where int8 saves so many seconds on each of them."""
    made, plan = static_plan(body)
    in_float = {choice.node: 10.0 for choice in plan}
    quantized = {node: 10.0 - gain.get(node, 0.0) for node in in_float}
    costs = Costs(in_float, quantized, dict.fromkeys(("x", *"uvwyz"), conversion), sum(in_float.values()))
    return "".join(c.node for c in cheapest(made, plan, costs, harm or {}).those(*COMPUTING))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gain", "kept"),
    [
        ({"a": 3, "b": 3, "c": 3, "d": 3}, "abcd"),
        ({"a": -3, "b": -3, "c": -3, "d": -3}, ""),
        ({"b": 1.5}, ""),
        ({"b": 2.5}, "b"),
        ({"b": 1.5, "c": 1.5}, "bc"),
        ({"b": 5, "c": -1.5, "d": 5}, "bcd"),
        ({"b": 5, "c": -2.5, "d": 5}, "bd"),
    ],
    ids=["all", "none", "not-worth-it", "worth-it", "together", "bridged", "parted"],
)
def test_a_border_costs_a_conversion(gain: dict[str, float], kept: str) -> None:
    """An int8 island pays for two borders, 1 second each; two neighbours share one."""
    assert int8(CHAIN, gain) == kept


def test_harm_counts_as_seconds() -> None:
    gain = dict.fromkeys("abcd", 3.0)
    assert int8(CHAIN, gain, harm={"b": 8}) == "acd"
    assert int8(CHAIN, gain, harm={"b": 4}) == "abcd"


def test_an_operator_without_weights_leaves_with_its_neighbours() -> None:
    body = "[a] u = Conv(x, f)  [p] v = Sigmoid(u)  [d] z = Conv(v, f)"
    assert int8(body, {"a": 3, "p": 1, "d": 3}) == "adp"
    assert int8(body, {"a": 3, "p": 1, "d": -9}) == "a"


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    body = "[a] u = Conv(x, f)  [b] v = Conv(x, f)  z = Concat<axis=0>(u, v)"
    assert int8(body, {"a": 1.6, "b": 1.6}) == "ab"
    assert int8(body, {"a": 1.6}) == ""


def test_prediction_is_float_less_what_the_nodes_save() -> None:
    _, plan = static_plan()
    costs = Costs(dict.fromkeys("abcd", 10.0), {"a": 4.0, "b": 8.0, "c": 9.0, "d": 12.0}, {}, 50.0)
    assert predicted_seconds(plan, costs, plan) == pytest.approx(50 - 6 - 2 - 1 + 2)


def test_optimistic_costs_never_make_float_the_faster() -> None:
    costs = Costs({"a": 10.0, "b": 10.0}, {"a": 30.0, "b": 1.0}, {"x": 5.0}, 20.0).optimistic()
    assert costs == Costs({"a": 10.0, "b": 10.0}, {"a": 5.0, "b": 1.0}, {"x": 0.0}, 20.0)


def test_kernels_belong_to_nodes_by_name_or_output() -> None:
    made, plan = static_plan("[a] u = Conv(x, f)  [r] v = Relu(u)  [d] z = Conv(v, f)")
    in_float = [Kernel("Conv", "a", 2.0, 1), Kernel("FusedConv", "z", 3.0, 1), Kernel("Reorder", "other", 7.0, 1)]
    quantized = [
        Kernel("QLinearConv", "v", 1.0, 1),
        Kernel("QLinearConv", "d", 1.5, 1),
        Kernel("QuantizeLinear", "x_QuantizeLinear", 0.5, 1),
    ]
    costs = attribute_costs(made, plan, in_float, quantized, {"x": 1000, "v": 2000})  # type: ignore[arg-type]
    assert costs.float_seconds == {"a": 2.0, "d": 3.0}
    assert costs.quantized_seconds == {"a": 1.0, "d": 1.5}
    assert costs.total_float == 12.0
    assert costs.conversion["v"] == pytest.approx(2 * costs.conversion["x"], rel=1e-3)
    assert costs.conversion["x"] == pytest.approx(2 * 0.5, rel=1e-3)
    floats = [Kernel("FusedConv", "v", 1.0, 1), Kernel("QLinearConv", "d", 1.0, 1)]
    assert [choice.node for choice in unfused(made, plan, floats)] == ["a"]  # type: ignore[arg-type]


def gelu(n: int, x: str, y: str) -> str:
    return (
        f"s{n} = Div({x}, root)  [e{n}] e{n} = Erf(s{n})  o{n} = Add(e{n}, one)  "
        f"m{n} = Mul({x}, o{n})  [g{n}] {y} = Mul(m{n}, half)"
    )


def test_kernels_of_gelus_belong_to_nodes_in_their_order() -> None:
    """onnxruntime calls them after nothing in the model."""
    body = f"[a] u = Conv(x, f)  {gelu(1, 'u', 'v')}  [b] w = Conv(v, f)  {gelu(2, 'w', 't')}  [d] z = Conv(t, f)"
    constants = {"f": normal(16, 16, 1, 1), "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    made = tiny.read(tiny.model(f"g (float[1,16,8,8] x) => (z) {{ {body} }}", constants))
    prepare(made)
    plan = make_plan(made, Recipe("w8a8"), targets.get("onnxq"), infer_types(made))
    chains = [choice.node for choice in plan if choice.op != "Conv"]
    ran = [Kernel("Conv", "a", 1.0, 1), Kernel("Gelu", "Gelu", 2.0, 1), Kernel("BiasGelu", "BiasGelu", 3.0, 1)]
    assert len(chains) == 2
    assert attribute_costs(made, plan, ran, [], {}).float_seconds == {"a": 1.0, chains[0]: 2.0, chains[1]: 3.0}
    assert set(attribute_costs(made, plan, ran[:2], [], {}).float_seconds) == {"a"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("/n/Mul/QuickGeluFusion/", "/n/Mul"),
        ("a/MatMulAddFusion_token_7", "a"),
        ("fused v_nchwc", "v"),
        ("/my/Fusion", "/my/Fusion"),
    ],
)
def test_names_of_kernels_are_those_of_nodes(given: str, name: str) -> None:
    assert original_name(given) == name


PRICES = st.floats(-5, 5).map(lambda x: round(x, 1))


@given(
    costs=st.lists(st.tuples(PRICES, PRICES), min_size=1, max_size=5),
    borders=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.5, 1.0, 3.0, math.inf])), max_size=8
    ),
)
def test_the_cut_is_the_cheapest_labelling(
    costs: list[tuple[float, float]], borders: list[tuple[int, int, float]]
) -> None:
    borders = [(a % len(costs), b % len(costs), price) for a, b, price in borders]
    borders = [border for border in borders if border[0] != border[1]]

    def total(first: set[int]) -> float:
        own = sum(one if node in first else other for node, (one, other) in enumerate(costs))
        return own + sum(price for a, b, price in borders if a in first and b not in first)

    cut = Cut()
    for node, (one, other) in enumerate(costs):
        cut.cost(node, first=one, second=other)
    for a, b, price in borders:
        cut.apart(a, b, price)
    found = {node for node in cut.first_side() if isinstance(node, int)}
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(costs)), n) for n in range(len(costs) + 1))
    assert total(found) == pytest.approx(min(total(set(subset)) for subset in subsets), abs=1e-6)


def test_a_contradiction_is_refused() -> None:
    cut = Cut()
    cut.cost("a", first=0, second=math.inf)
    cut.cost("b", first=math.inf, second=0)
    cut.apart("a", "b", math.inf)
    with pytest.raises(ValueError, match="no labelling has a finite cost"):
        cut.first_side()

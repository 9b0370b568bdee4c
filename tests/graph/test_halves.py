"""int8, bfloat16 or float for each node, decided by one minimum cut: compared with trying everything."""

from __future__ import annotations

import itertools

import onnx_ir as ir
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import normal

from onnxq import targets
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.plan import COMPUTING, Method, Plan
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.runtime.kernel_times import Kernel
from onnxq.tuning.costs import Costs, cheapest, predicted_seconds
from onnxq.tuning.halves import HalfCosts, all_in_half, are_in_half, conversion_rate, half_costs, seconds_in_half

CHAIN = "[a] u = Conv(x, f)  [b] v = Conv(u, f)  [c] w = Conv(v, f)  [d] z = Conv(w, f)"
MADE = tiny.read(tiny.model(f"g (float[1,16,8,8] x) => (z) {{ {CHAIN} }}", {"f": normal(16, 16, 1, 1)}))
prepare(MADE)
PLAN = make_plan(MADE, Recipe("w8a8"), targets.get("onnxq"), infer_types(MADE))
NODES = "abcd"
PRICES = {"x": 1.0, "u": 2.0, "v": 1.0, "w": 0.5, "z": 1.0}


def _cost(labels: tuple[str, ...], times: dict[str, list[float]], half: float) -> float:
    """By definition: the kernels, and each border in the form in which it is crossed."""
    kinds = ["int8", "float", "bf16"]
    total = sum(times[node][kinds.index(label)] for node, label in zip(NODES, labels, strict=True))
    sides = ["float", *labels, "float"]
    for value, made, read in zip("xuvwz", sides[:-1], sides[1:], strict=True):
        total += PRICES[value] * ((made == "int8") != (read == "int8"))
        total += half * ((made == "bf16") != (read == "bf16"))
    return total


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.0, 7.0]), min_size=3, max_size=3), min_size=4, max_size=4),
    st.sampled_from([0.0, 0.75, 2.0]),
)
def test_no_assignment_is_cheaper(given_times: list[list[float]], half: float) -> None:
    times = dict(zip(NODES, given_times, strict=True))
    links = [("a", "b", half), ("b", "c", half), ("c", "d", half)]
    halves = HalfCosts({node: times[node][2] for node in NODES}, links, {"a": half, "d": half})
    int8, floats = ({node: times[node][i] for node in NODES} for i in (0, 1))
    costs = Costs(floats, int8, PRICES, sum(floats.values()), halves=halves)
    found = cheapest(MADE, PLAN, costs, {})
    labels = []
    for node in NODES:
        choice = found.choices[node]
        labels.append("bf16" if choice.joins_bf16_region else "int8" if choice.method in COMPUTING else "float")
    least = min(_cost(each, times, half) for each in itertools.product(("int8", "float", "bf16"), repeat=4))
    assert abs(_cost(tuple(labels), times, half) - least) < 1e-9
    kernels = sum(times[node][["int8", "float", "bf16"].index(each)] for node, each in zip(NODES, labels, strict=True))
    assert abs(predicted_seconds(found, costs, PLAN) - kernels) < 1e-9


def test_what_noise_in_bfloat16_is_worth_is_added_to_its_time() -> None:
    halves = HalfCosts(dict.fromkeys(NODES, 1.0), [], {}).plus({"b": 5.0})
    costs = Costs(dict.fromkeys(NODES, 4.0), dict.fromkeys(NODES, 9.0), PRICES, 16.0, halves=halves)
    found = cheapest(MADE, PLAN, costs, {})
    assert [each for each in NODES if found.choices[each].joins_bf16_region] == ["a", "c", "d"]


def test_what_lies_between_convolutions_links_them() -> None:
    """Pools and sums are as good as nothing; an operator that bf16 regions lack, and an output, are borders."""
    body = """[a] u = Conv(x, f)  p = Relu(u)  q = MaxPool<kernel_shape = [1, 1]>(p)  [b] v = Conv(q, f)
              s = Add(v, u)  [c] w = Conv(s, f)  t = Softsign(w)  [d] z = Conv(t, f)"""
    made = tiny.read(tiny.model(f"g (float[1,16,8,8] x) => (z) {{ {body} }}", {"f": normal(16, 16, 1, 1)}))
    found = half_costs(made, dict.fromkeys(NODES, 1.0), 1e-6, {"x": 1000, "q": 2000, "s": 4000, "t": 8000})
    assert {(a, b) for a, b, _ in found.links} == {("a", "b"), ("b", "c"), ("a", "c")}
    assert sum(price for a, b, price in found.links if b == "c") > 0.004
    assert set(found.alone) == {"a", "c", "d"} and found.alone["d"] > 0.008


def test_activations_that_convolutions_compute_are_not_paid_for_twice() -> None:
    """SiLU is part of the step in bfloat16, and two nodes beside the convolution in float and in int8."""
    body = "[a] u = Conv(x, f)  [s] s = Sigmoid(u)  [m] v = Mul(u, s)  [b] w = Conv(v, f)  [t] z = Softsign(w)"
    made = tiny.read(tiny.model(f"g (float[1,16,8,8] x) => (z) {{ {body} }}", {"f": normal(16, 16, 1, 1)}))
    prepare(made)
    plan = make_plan(made, Recipe("w8a8"), targets.get("onnxq"), infer_types(made))
    in_float = {"a": 2.0, "m": 4.0, "b": 2.0, "t": 1.0}
    found = half_costs(made, {"a": 3.0, "b": 1.0}, 0.0, {}, in_float)
    assert found.seconds == {"a": -1.0, "b": 1.0} and found.computed == {"a": ["m"], "b": []}
    costs = Costs(in_float, dict.fromkeys(in_float, 5.0), dict.fromkeys(("x", "u", "v", "w"), 0.1), 9.0, halves=found)
    best = cheapest(made, plan, costs, {})
    assert best.choices["a"].joins_bf16_region and best.choices["b"].joins_bf16_region
    assert predicted_seconds(best, costs, plan) == 9.0 - 3.0 - 1.0


PRODUCTS = """[a] h = MatMul(x, w)  g = Gelu(h)  [b] k = MatMul(g, w)  [c] s = MatMul(k, t)  [m] p = Softmax(s)
              v = MatMul(p, k)  [d] z = MatMul(v, w)"""


def products(opset: int = 20) -> tuple[ir.Model, Plan]:
    header = f"g (float[1,16,32] x, float[1,32,16] t) => (z) {{ {PRODUCTS} }}"
    made = tiny.read(tiny.model(header, {"w": normal(32, 32)}, opset=opset))
    prepare(made)
    return made, make_plan(made, Recipe("w8a8"), targets.get("onnxq"), infer_types(made))


def test_products_and_attentions_are_float_between_kernels_in_bfloat16() -> None:
    """No border costs anything; each is decided alone."""
    made, plan = products()
    assert {each.node for each in plan.those(Method.STATIC)} >= {*"abdm"}
    halves = all_in_half(made, plan)
    methods = {each.node: (each.method, each.format) for each in are_in_half(halves, plan)}
    dense = (Method.PACKED, "bfloat16")
    assert methods == {"a": dense, "b": dense, "d": dense, "m": (Method.FUSED, None)}
    found = half_costs(made, dict.fromkeys("abdm", 1.0), 1e-6, {})
    assert found == HalfCosts(dict.fromkeys("abdm", 1.0))
    nodes = [each.node for each in plan.those(Method.STATIC)]
    floats = dict.fromkeys(nodes, 4.0) | {"b": 0.5}
    costs = Costs(floats, dict.fromkeys(nodes, 9.0) | {"d": 0.25}, {}, 20.0, halves=found)
    best = cheapest(made, plan, costs, {})
    assert best.choices["a"].label == "bfloat16" and best.choices["m"].method is Method.FUSED
    assert best.choices["d"].method is Method.STATIC and best.choices["b"].method is Method.STORED
    assert predicted_seconds(best, costs, plan) == 20.0 - sum(floats[n] for n in "amd") + 1.0 + 1.0 + 0.25
    assert all_in_half(*products(opset=14)).those(Method.PACKED) == []


def test_only_targets_with_regions_are_asked() -> None:
    halves = all_in_half(MADE, PLAN)
    assert all(halves.choices[node].joins_bf16_region for node in NODES) and not halves.those(Method.STATIC)
    plain = make_plan(MADE, Recipe("w8a8"), targets.get("ort-cpu"), infer_types(MADE))
    assert all_in_half(MADE, plain) is plain


def test_times_are_those_of_steps() -> None:
    kernels = [
        Kernel("Bf16Region.conv", "a", 3.0, 1),
        Kernel("Bf16Region.read", "x_read", 2.0, 1),
        Kernel("Bf16Region.write", "z_write", 4.0, 1),
        Kernel("Conv", "b", 9.0, 1),
    ]
    assert seconds_in_half(kernels, {each: each for each in "ab"}) == {"a": 3.0}
    assert conversion_rate(kernels, {"x": 1, "z": 2}) == 2.0

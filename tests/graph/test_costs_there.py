"""What nodes cost in another runtime, by made-up times of its kernels."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq import targets
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.plan import COMPUTING, Method, Plan
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.runtime.kernel_times import Kernel
from onnxq.tuning.costs import Costs, borders, cheapest
from onnxq.tuning.costs_there import LEAST, costs_there

#: A convolution whose result becomes codes behind a Tanh, one whose result does so at once, and a pool between codes.
BODY = """[a] u = Conv(x, f)  [t] v = Tanh(u)  [b] w = Conv(v, f)  [p] q = MaxPool<kernel_shape = [1, 1]>(w)
    [c] y = Conv(q, f)  [s] z = Sigmoid(q)"""
SIZES = {"x": 1000, "v": 2000, "w": 3000, "q": 3000}
IN_FLOAT = [
    Kernel("Convolution", "a", 4.0, 1, others=("t",)),
    Kernel("Convolution", "b", 5.0, 1),
    Kernel("Pooling", "p", 1.0, 1),
    Kernel("Convolution", "c", 6.0, 1),
    Kernel("Reorder", "y", 0.5, 1),
]
IN_INT8 = [
    Kernel("FakeQuantize", "x_QuantizeLinear", 0.5, 1),
    Kernel("Convolution", "t", 1.0, 1, others=("a", "v_QuantizeLinear")),
    Kernel("Convolution", "b", 2.0, 1, others=("w_QuantizeLinear",)),
    Kernel("Pooling", "p", 0.25, 1),
    Kernel("Convert", "q_DequantizeLinear", 0.125, 1),
    Kernel("Convolution", "c", 3.0, 1),
]


@pytest.fixture
def made() -> tuple[ir.Model, Plan]:
    model = tiny.read(tiny.model(f"g (float[1,16,8,8] x) => (y, z) {{ {BODY} }}", {"f": normal(16, 16, 1, 1)}))
    prepare(model)
    plan = make_plan(model, Recipe("w8a8"), targets.get("openvino"), infer_types(model))
    assert {choice.node for choice in plan.those(Method.STATIC)} == {"a", "b", "p", "c"}
    return model, plan


@pytest.fixture
def costs(made: tuple[ir.Model, Plan]) -> Costs:
    return costs_there(*made, IN_FLOAT, IN_INT8, SIZES)


def test_a_kernel_is_that_of_the_node_with_weights_whose_work_it_does(costs: Costs) -> None:
    assert costs.float_seconds == {"a": 4.0, "b": 5.0, "p": 1.0, "c": 6.5}
    assert costs.quantized_seconds == {"a": 1.0, "b": 2.0, "p": 0.25, "c": 3.0}
    assert costs.total_float == 16.5


def test_rounding_inside_of_a_kernel_takes_no_time_of_its_own(costs: Costs) -> None:
    rate = (0.5 - LEAST) / 1000
    assert costs.conversion["x"] == 0.5 and costs.conversion["v"] == 0
    assert costs.conversion["w"] == pytest.approx(LEAST + 3000 * rate)  # in front of it may be a kernel in float
    assert costs.conversion_rate == pytest.approx(rate)


def test_what_is_brought_to_be_rounded_and_norms_that_round(made: tuple[ir.Model, Plan]) -> None:
    """A norm is spelled otherwise there, and called after the rounding behind it alone."""
    kernels = [
        Kernel("FakeQuantize", "x_QuantizeLinear", 0.5, 1),
        Kernel("Reorder", "padding_bf16_f32_x_QuantizeLinear", 0.25, 1),
        Kernel("MVN", "MVN_64", 7.0, 1, others=("v_QuantizeLinear",)),
    ]
    found = costs_there(*made, IN_FLOAT, kernels, SIZES)
    assert found.conversion["x"] == 0.75 and found.conversion["v"] == 0


def test_convolutions_make_floats_as_well_as_codes_and_others_do_not(costs: Costs) -> None:
    assert costs.release == {"u": 0.0, "w": 0.0, "q": 0.125, "y": 0.0}  # u is read in floats alone
    assert costs.released("x") == costs.conversion["x"]


def test_borders_are_paid_by_their_direction(made: tuple[ir.Model, Plan], costs: Costs) -> None:
    assert borders(*made, costs) == pytest.approx(0.5 + 0.125)
    cheap = cheapest(*made, costs, {})
    assert {choice.node for choice in cheap.those(*COMPUTING)} == {"a", "b", "p", "c"}
    dear = Costs(
        costs.float_seconds, costs.quantized_seconds | {"a": 9.0}, costs.conversion, 16.5, release=costs.release
    )
    assert {choice.node for choice in cheapest(*made, dear, {}).those(*COMPUTING)} == {"b", "p", "c"}


def test_nothing_that_was_seen_to_round_leaves_a_guess(made: tuple[ir.Model, Plan]) -> None:
    found = costs_there(*made, IN_FLOAT, [kernel for kernel in IN_INT8 if kernel.op == "Convolution"], SIZES)
    assert found.conversion["x"] > LEAST and found.conversion_rate is not None and found.conversion_rate > 0
    assert costs_there(*made, [], [], {}).total_float == 0

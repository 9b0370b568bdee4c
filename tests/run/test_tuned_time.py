"""Plans that take longer than their kernels did one by one: what happens between kernels no cost says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny import normal

from onnxq import quantize
from onnxq.plan import FLOAT_IS_FASTER, Method, Plan, in_float
from onnxq.recipe import Recipe
from onnxq.runtime.profile import PlanTime
from onnxq.tuning import tune
from onnxq.tuning.timings import Timings

pytestmark = pytest.mark.usefixtures("twice_as_fast")
TEXT = "g (float[1, 16, 12, 12] x) => (float[1, 16, 8, 8] y) { a = Conv(x, w)  r = Relu(a)  y = Conv(r, v) }"


@pytest.mark.parametrize(("between", "gives_way"), [(0.6, False), (3.0, True)], ids=["as thought", "slower"])
def test_the_plan_that_was_timed_takes_its_place(
    between: float, gives_way: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheapest plan by costs has one convolution in float; measured as a whole it may take longer than float."""

    def cheapest(model: Any, plan: Plan, *_: Any) -> Plan:
        first = next(choice for choice in plan if choice.op == "Conv")
        return plan.replacing([in_float(first, FLOAT_IS_FASTER)])

    def speed(timings: Timings, plan: Plan, *_: Any) -> PlanTime:
        whole = len(plan.those(Method.STATIC)) == 2
        return PlanTime(0.5 if whole else between, 0.01)

    monkeypatch.setattr(tune, "cheapest", cheapest)
    monkeypatch.setattr(tune, "predicted_seconds", lambda plan, costs, full: 0.55 * costs.total_float)
    monkeypatch.setattr(tune, "_best_bargain", lambda terms, plan, costs, candidates: candidates[0])
    monkeypatch.setattr(Timings, "speed", speed)
    path = tiny.save(tiny.model(TEXT, {"w": normal(16, 16, 3, 3), "v": normal(16, 16, 3, 3)}), tmp_path)
    data = [{"x": normal(1, 16, 12, 12, seed=i)} for i in range(8)]
    made = quantize(path, tmp_path / "q.onnx", Recipe("w8a8"), data=data)
    assert (made.plan.choices["a"].method is Method.STATIC) == gives_way


@pytest.mark.parametrize(("ratio", "wins"), [(0.5, True), (1.5, False)], ids=["faster", "slower"])
def test_noise_that_is_below_that_of_weights_costs_nothing(
    ratio: float, wins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels stay in float for their noise, the weights are written with theirs all the same."""
    masked: list[float] = []

    def bargain(terms: tune.Terms, plan: Plan, _: Any) -> Plan:
        masked.append(terms.masked)
        return plan.replacing(in_float(c, tune.NOISIER) for c in plan) if terms.masked == math.inf else plan

    monkeypatch.setattr(tune, "_bargain", bargain)
    monkeypatch.setattr(
        Timings, "measured", lambda self, plan, _: PlanTime(ratio if plan.those(Method.STATIC) else 1.0, 0)
    )
    path = tiny.save(tiny.model(TEXT, {"w": normal(16, 16, 3, 3), "v": normal(16, 16, 3, 3)}), tmp_path)
    data = [{"x": normal(1, 16, 12, 12, seed=i)} for i in range(8)]
    made = quantize(path, tmp_path / "q.onnx", Recipe("w8a8"), data=data)
    assert len(masked) == 2 and 30 < masked[1] < 70
    assert {made.plan.choices[node].method for node in "ay"} == {Method.STATIC if wins else Method.STORED}

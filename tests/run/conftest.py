"""For tests that run models."""

from __future__ import annotations

import functools

import pytest

from onnxq.checking import compare, models, saved, verdict
from onnxq.plan import COMPUTING, Plan
from onnxq.runtime import timing
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.timing import Race
from onnxq.searching import space
from onnxq.tuning import plan_bench, timings
from onnxq.tuning.plan_bench import PlanBench


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of the least effort run the model as often as these tests need it."""
    monkeypatch.setitem(space.RUNS, "quick", (0.0, 32, 32))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are measured for as short as it goes: tests that use this do not depend on them."""
    monkeypatch.setattr(timings, "TIMING_SECONDS", 0.01)
    monkeypatch.setattr(plan_bench, "PROFILE_SECONDS", 0.01)
    monkeypatch.setattr(plan_bench, "PROFILE_RUNS", (2, 4))
    for name, few in (("GROUPS", 3), ("ROUNDS", 1), ("LEAST_TURNS", 2), ("MOST_TURNS", 4)):
        monkeypatch.setattr(timing, name, few)
    for module in (saved, compare):
        monkeypatch.setattr(module, "check_models", functools.partial(models.check_models, seconds=0.01))


@pytest.fixture
def twice_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers take 45 % of the time of float, in every product and as a whole, and nothing else takes any."""

    def kernels(bench: PlanBench, plan: Plan | None, *, timed: bool = True) -> list[Kernel]:
        is_int8 = set() if plan is None else {c.node for c in plan.those(*COMPUTING)}
        found = []
        for run in filter(lambda run: run.multiplications, bench.trace):
            op = "QLinearConv" if run.node in is_int8 and run.op == "Conv" else run.op
            found.append(Kernel(op, run.node, 0.45 if run.node in is_int8 else 1.0, 1))
        return found

    monkeypatch.setattr(PlanBench, "kernels", kernels)
    monkeypatch.setattr(PlanBench, "speed", lambda bench, plan, seconds, bound: Race((1.0, 0.45), (0.0, 0.01)))
    monkeypatch.setattr(verdict, "SLOWER", float("inf"))

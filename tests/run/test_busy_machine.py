"""Whole runs on a machine that other processes disturb: the plan, and what is said of its speed, are those of a quiet
one. The clocks are made up, so that nothing here depends on the machine that tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from run.test_tune import LAYERS, encoder
from sweeps import swept

import onnxq
from onnxq.plan import Method
from onnxq.recipe import Recipe
from onnxq.runtime import timing
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.session import Session
from onnxq.tuning import plan_bench

#: Seconds of a product in float: of a model so slow that it is timed a few times only.
PRODUCT = 0.25


@dataclass
class Machine:
    """What its clocks say: the processor time of the one thread that runs, and the time on the wall.

    Attributes:
        speed: how many times as fast as in float products are in int8.
        load: how many times as long as alone a run takes, of its processor time and on the wall.
    """

    speed: float
    load: Iterator[tuple[float, float]]
    processor: float = 0.0
    wall: float = 0.0

    def thread_time(self) -> float:
        return self.processor

    def perf_counter(self) -> float:
        return self.wall

    def passes(self, seconds: float) -> float:
        """The time on the wall that so many seconds alone take."""
        own, waits = next(self.load)
        self.processor += seconds * own
        self.wall += seconds * own * waits
        return seconds * own * waits

    def seconds_of(self, op: str) -> float:
        if op.startswith(("MatMulInteger", "DynamicQuantizeMatMul")):
            return PRODUCT / self.speed
        return PRODUCT if op == "MatMul" else 0.0


def alone() -> Iterator[tuple[float, float]]:
    while True:
        yield 1.0, 1.0


def busy(seed: int) -> Iterator[tuple[float, float]]:
    """Other processes come and go, so that what runs meanwhile takes many times its own time; caches are shared."""
    rng = np.random.default_rng(seed)
    while True:
        others = rng.choice([1.0, 3.0, 9.0])
        for _ in range(rng.integers(5, 60)):
            yield 1 + abs(rng.normal(0, 0.02)), others * (1 + rng.exponential(0.3))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Puts a machine in the place of this one."""
    opened, ran, profiled = Session.__init__, Session.run, Session.kernels
    monkeypatch.setattr(plan_bench, "PROFILE_RUNS", (4, 4))

    def use(machine: Machine) -> None:
        def open_session(session: Session, model: str | Path | ir.Model, **how: Any) -> None:
            opened(session, model, **how)
            nodes = (model if isinstance(model, ir.Model) else ir.load(model)).graph
            session.seconds = sum(machine.seconds_of(node.op_type) for node in nodes)  # type: ignore[attr-defined]

        def run(session: Session, *arguments: Any) -> Any:
            machine.passes(session.seconds)  # type: ignore[attr-defined]
            return ran(session, *arguments)

        def kernels(session: Session) -> list[Kernel]:
            """As a profile sees them: by the wall."""
            found = profiled(session)
            return [
                replace(each, seconds=min(machine.passes(machine.seconds_of(each.op)) for _ in range(each.runs)))
                for each in found
            ]

        monkeypatch.setattr(Session, "__init__", open_session)
        monkeypatch.setattr(Session, "run", run)
        monkeypatch.setattr(Session, "kernels", kernels)
        monkeypatch.setattr(timing, "time", machine)

    return use


def decided(result: onnxq.Result) -> dict[str, Method]:
    return {choice.node: choice.method for choice in result.plan}


@pytest.mark.sweep
@pytest.mark.parametrize("speed", [swept(0.57), swept(1.16), 7.46])
def test_plans_and_figures_are_those_of_a_quiet_machine(
    speed: float, on: Callable[[Machine], None], tmp_path: Path
) -> None:
    model, found = encoder(tmp_path), {}
    for name, load in (("quiet", alone()), ("busy", busy(0)), ("busier", busy(1))):
        on(Machine(speed, load))
        recipe = Recipe("w8a8-dynamic", prefer="speed")
        found[name] = onnxq.quantize(model, tmp_path / f"{name}.onnx", recipe)
    quiet = found.pop("quiet")
    int8 = len(quiet.plan.those(Method.DYNAMIC))
    assert (int8 > LAYERS / 2) == (speed > 1) and (int8 > 0) == (speed > 1)
    for result in found.values():
        assert decided(result) == decided(quiet)
        assert result.check.latency_ratio == pytest.approx(quiet.check.latency_ratio, rel=0.05)
        assert result.bytes_after == pytest.approx(quiet.bytes_after, abs=64)  # the hash of the times is in the file

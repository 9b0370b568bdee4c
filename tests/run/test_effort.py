"""How much is measured: as the effort says, whatever a plan costs, and nothing twice. Runs are counted, not timed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import spoiled_rows
from run.test_tune import encoder
from spoiled_rows import SAMPLES

import onnxq
from onnxq.preference import SEARCHES
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session
from onnxq.tuning import plan_bench
from onnxq.tuning.plan_bench import SECONDS_A_BYTE, SECONDS_A_PLAN, PlanBench
from onnxq.tuning.watched import Watched

pytestmark = pytest.mark.usefixtures("quick")
#: Bytes of a model that takes less than a minute, and the counted seconds that its plans may take.
MODEL, MOST_SECONDS = 100_000_000, 60.0


@dataclasses.dataclass
class Counted:
    """What is done to models that plans are made into: by their bytes, how often each was raced, profiled, and run on
    each sample."""

    raced: Counter[str] = dataclasses.field(default_factory=Counter)
    profiled: Counter[str] = dataclasses.field(default_factory=Counter)
    compared: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)

    @property
    def plans(self) -> int:
        return len({model for model, _ in self.compared})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()

    class Heard(Session):
        def __init__(self, model: ir.Model, **how: Any) -> None:
            super().__init__(model, **how)
            self.bytes = hashlib.sha256(ir.to_proto(model).SerializeToString(deterministic=True)).hexdigest()
            self.is_compared = not how.get("profile") and how["threads"] == 0
            if how.get("profile"):
                found.profiled[self.bytes] += 1
            elif not self.is_compared:
                found.raced[self.bytes] += 1

        def run(self, feed: Any, outputs: Any = None) -> list[Any]:
            if self.is_compared:
                found.compared[self.bytes, id(feed)] += 1
            return super().run(feed, outputs)

    monkeypatch.setattr(plan_bench, "Session", Heard)
    return found


def data() -> list[dict[str, np.ndarray]]:
    return [{"ids": np.random.default_rng(seed).integers(0, 500, (2, 9))} for seed in range(12)]


@pytest.mark.sweep
@pytest.mark.parametrize(("scheme", "floor"), [("w8a8", None), ("w8a8-dynamic", 35.0), ("w4a16", 35.0), ("auto", None)])
def test_nothing_is_measured_twice(scheme: str, floor: float | None, counted: Counted, tmp_path: Path) -> None:
    """No plan is run on a sample again, profiled again or raced again, though several steps ask for it: on the samples
    looked at, on all of them, and after the file was checked. The float model is run again, to see what is random."""
    recipe = Recipe(scheme, min_sqnr=floor, prefer="accuracy")
    onnxq.quantize(encoder(tmp_path), tmp_path / "q.onnx", recipe, data=data() if scheme == "w8a8" else None)
    (in_float,) = {model for (model, _), times in counted.compared.items() if times > 1}
    assert counted.plans > 5
    assert max(times for (model, _), times in counted.compared.items() if model != in_float) == 1
    assert max(counted.profiled.values(), default=0) <= 1
    assert max((times for model, times in counted.raced.items() if model != in_float), default=0) <= 1


def test_samples_that_are_looked_at_later_alone_are_run(counted: Counted) -> None:
    bench, plan = spoiled_rows.bench(), spoiled_rows.plan
    bench.watch(plan(4))
    assert bench.quality(plan(8)).by_label().keys() < {trial.label for trial in SAMPLES}
    counted.compared.clear()
    assert bench.overlooks(plan(8)) and bench.quality(plan(8)).by_label().keys() == {trial.label for trial in SAMPLES}
    assert sorted(counted.compared.values()) == [1] * 4
    assert bench.size(plan(8)) == 1 and sum(counted.compared.values()) == 4


@pytest.mark.sweep
@pytest.mark.usefixtures("twice_as_fast")
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic", "w4a16", "auto"])
def test_less_effort_measures_less_and_the_usual_one_takes_a_minute(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a model of 100 MB, which this small one is taken for, whose plans cost what loading such a one does."""
    cost = SECONDS_A_PLAN + MODEL * SECONDS_A_BYTE
    monkeypatch.setattr(PlanBench, "cost", cost)
    model, plans = encoder(tmp_path), {}
    for effort in SEARCHES:
        measured: Counter[object] = Counter()
        compared = Watched.compared

        def counting(watched: Watched, session: Session, sample: int) -> object:
            measured[id(session)] += 1  # noqa: B023
            opened.append(session)  # noqa: B023
            return compared(watched, session, sample)  # noqa: B023

        opened: list[Session] = []  # kept, so that no other one has its number
        with monkeypatch.context() as patch:
            patch.setattr(Watched, "compared", counting)
            recipe = Recipe(scheme, effort=effort)
            onnxq.quantize(model, tmp_path / f"{effort}.onnx", recipe, data=data() if scheme == "w8a8" else None)
        plans[effort] = len(measured)
    assert 0 < plans["quick"] < plans["normal"] <= plans["thorough"]
    assert plans["normal"] * cost < MOST_SECONDS
    assert plans["quick"] * cost < MOST_SECONDS / 2

"""Work is counted: what may be tried on a model does not depend on a clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny

import onnxq
from onnxq.analysis.trial import Trial
from onnxq.model.weights import find_weights
from onnxq.plan import Method
from onnxq.runtime import work
from onnxq.runtime.work import Array, NodeRun
from onnxq.samples.source import Data
from onnxq.samples.trials import Trials
from onnxq.tuning.plan_bench import PlanBench

F = "float"


@pytest.mark.parametrize(
    ("op", "inputs", "output", "wanted"),
    [
        ("Conv", [(1, 8, 10, 10), (16, 8, 3, 3)], (1, 16, 10, 10), 16 * 8 * 9 * 100),
        ("Conv", [(1, 8, 10, 10), (8, 1, 3, 3)], (1, 8, 10, 10), 8 * 9 * 100),
        ("ConvTranspose", [(1, 8, 5, 5), (8, 16, 2, 2)], (1, 16, 10, 10), 8 * 25 * 16 * 4),
        ("MatMul", [(2, 5, 64), (64, 32)], (2, 5, 32), 2 * 5 * 64 * 32),
        ("Gemm", [(64, 5), (64, 32)], (5, 32), 5 * 64 * 32),
        ("Einsum", [(5, 64), (64, 32)], (5, 32), 5 * 64 * 32),
        ("LSTM", [(7, 3, 64), (1, 128, 64), (1, 128, 32)], (7, 1, 3, 32), 7 * 3 * (128 * 64 + 128 * 32)),
        ("Add", [(5, 64), (64,)], (5, 64), 0),
    ],
)
def test_multiplications(op: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], wanted: int) -> None:
    run = NodeRun("n", op, tuple(Array(F, shape) for shape in inputs), (Array(F, output),))
    assert run.multiplications == wanted


def test_a_trace_holds_every_run_of_a_loop() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
        n = Constant <value = int64 {3}> ()
        c = Constant <value = bool {1}> ()
        [loop] y = Loop (n, c, x) <body = b (int64 i, bool go, float[2, 4] h) => (bool on, float[2, 4] z)
            { on = Identity(go)  [product] z = MatMul(h, w) }>
    }"""
    model = tiny.read(tiny.model(text, {"w": tiny.normal(4, 4)}))
    runs = work.trace(model, {"x": tiny.normal(2, 4)})
    products = [run for run in runs if run.op == "MatMul"]
    assert [(run.node, run.multiplications) for run in products] == 3 * [("product", 32)]
    assert str(products[0].inputs[1]) == "float[4,4]"
    assert 0 < work.seconds(runs) < 1e-3


def _clocks(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    ticks: Iterator[float] = itertools.count(0.0, step)
    for name in ("perf_counter", "thread_time", "process_time", "monotonic"):
        monkeypatch.setattr(time, name, lambda: next(ticks))


@pytest.mark.parametrize("step", [1e-9, 100.0])
def test_a_slow_machine_measures_as_much(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """The clock stands still, or every look at it takes minutes."""
    monkeypatch.setattr("onnxq.tuning.plan_bench.QUALITY_SECONDS", 4.5 * work.NODE)
    _clocks(monkeypatch, step)
    model = tiny.read(tiny.model("g (float[1, 4] x) => (float[1, 4] y) { y = MatMul(x, w) }", {"w": tiny.normal(4, 4)}))
    feeds = [{"x": tiny.normal(1, 4, seed=n)} for n in range(9)]
    bench = PlanBench(model, lambda plan: model, Trials.given(feeds, ""))
    assert len(bench.feeds) == 4
    data = Data("feeds", lambda: iter([lambda feed=feed: feed for feed in feeds]))
    assert Trial(model, find_weights(model), data).samples == 4
    assert bench.cost == pytest.approx(0.05, abs=0.001)


def test_work_grows_with_the_sample() -> None:
    model = tiny.read(
        tiny.model("g (float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }", {"w": np.eye(64, dtype=np.float32)})
    )
    one, many = (sum(r.multiplications for r in work.trace(model, {"x": tiny.normal(n, 64)})) for n in (1, 50))
    assert many == 50 * one


def test_a_model_is_traced_once_on_a_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: None) -> None:
    """For the number of samples to compare calibrations on, and for the number of plans to measure."""
    seen = []
    trace = work.trace
    monkeypatch.setattr(work, "trace", lambda model, feed: seen.append(feed) or trace(model, feed))
    text = "g (float[3, 64] x) => (float[3, 96] y) { y = MatMul(x, w) }"
    path = tiny.save(tiny.model(text, {"w": tiny.normal(64, 96)}), tmp_path)
    data = [{"x": tiny.normal(3, 64, seed=n)} for n in range(16)]
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), data=data)
    assert result.plan.those(Method.STATIC) and result.recipe.calibration != "auto"
    assert len(seen) == 1

"""`auto` takes the method that the measurement is for, and measures the model that it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny

import onnxq
from onnxq import Recipe, collectors
from onnxq.calibration import calibrate, pick_method
from onnxq.calibration.find_ranges import find_ranges
from onnxq.calibration.observations import Observations
from onnxq.calibration.pick_method import least_noise
from onnxq.job import open_job
from onnxq.preference import LEAST_SAMPLES
from onnxq.runtime import work
from onnxq.samples.sampling import HELD_BACK
from onnxq.samples.source import Data
from onnxq.summaries.ranges import Range, Ranges

TEXT = "g (float[N, 4] x) => (float[N, 4] y) { y = Mul(x, s) }"
FEEDS = [
    {"x": np.random.default_rng(i).standard_normal((5, 4)).astype(np.float32)} for i in range(pick_method.LEAST_SAMPLES)
]


def scaled(factor: float) -> ir.Model:
    return tiny.read(tiny.model(TEXT, {"s": np.array(factor, np.float32)}))


def chosen(errors: dict[str, float]) -> str:
    """What is chosen where each method's ranges make the output wrong by this factor."""
    candidates = {name: Ranges("", "", name, {"x": Range(0, error)}) for name, error in errors.items()}
    return least_noise(scaled(1), candidates, lambda r: scaled(1 + r.values["x"].high), FEEDS)


@pytest.mark.parametrize(
    ("errors", "wanted"),
    [
        ({"percentile": 0.1, "mse": 0.01, "minmax": 0.05}, "mse"),
        ({"percentile": 0.1, "mse": 0.2, "minmax": 0.05}, "minmax"),
        ({"percentile": 0.01, "mse": 0.2, "minmax": 0.05}, "percentile"),
        ({"percentile": 0.100, "mse": 0.093}, "percentile"),
        ({"percentile": 0.1, "mse": float("nan")}, "percentile"),
        ({"percentile": float("nan"), "mse": 0.1}, "mse"),
    ],
    ids=str,
)
def test_the_least_noise_wins_if_it_is_clearly_less(errors: dict[str, float], wanted: str) -> None:
    assert chosen(errors) == wanted


def test_too_few_samples_decide_nothing() -> None:
    candidates = {name: Ranges("", "", name, {"x": Range(0, high)}) for name, high in (("percentile", 9), ("mse", 0))}
    few = FEEDS[: pick_method.LEAST_SAMPLES - 1]
    assert least_noise(scaled(1), candidates, lambda r: scaled(1 + r.values["x"].high), few) == "percentile"


def test_equal_ranges_are_measured_once() -> None:
    made: list[str] = []

    def rewrite(ranges: Ranges) -> ir.Model:
        made.append(ranges.method)
        return scaled(1.01)

    candidates = {name: Ranges("", "", name, {"x": Range(0, 1)}) for name in ("minmax", "percentile", "mse")}
    assert least_noise(scaled(1), candidates, rewrite, FEEDS) == "percentile"
    assert made == ["minmax"]


def test_a_hopeless_method_is_measured_on_half_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[float] = []

    class Counted(pick_method.Session):
        def __init__(self, model: ir.Model, **options: int) -> None:
            super().__init__(model, **options)
            self.scale = float(model.graph.initializers["s"].const_value.numpy())  # type: ignore[union-attr]

        def run(self, *given: object) -> list[np.ndarray]:
            runs.append(round(self.scale - 1, 3))
            return super().run(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(pick_method, "Session", Counted)
    assert chosen({"mse": 0.01, "minmax": 0.5, "percentile": 0.4, "entropy": 0.012}) == "mse"
    assert [runs.count(error) for error in (0.01, 0.5, 0.4, 0.012)] == [4, 2, 4, 4]


def test_where_a_run_is_much_work_fewer_samples_give_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[N, 64] x) => (float[N, 64] y) { h = MatMul(x, v)  r = Relu(h)  y = MatMul(r, w) }"
    path = tiny.save(tiny.model(text, {"v": tiny.normal(64, 64), "w": tiny.normal(64, 64)}), tmp_path)
    samples = [{"x": tiny.normal(4, 64, seed=n)} for n in range(70)]
    given = 70 - HELD_BACK

    def seen(effort: str, cost: float, file: Path | None = None) -> int:
        monkeypatch.setattr(work, "seconds", lambda runs: cost)
        job = open_job(path, Recipe("w8a8", calibration="minmax", effort=effort), data=samples)
        watched: list[int] = []
        with monkeypatch.context() as patched:
            patched.setattr(calibrate, "observe", counting(watched))
            find_ranges(job, file)
        return watched[0]

    assert seen("normal", 0.1) == given
    assert seen("normal", 0.2) == seen("quick", 0.05) == given // 2
    assert seen("normal", 100.0) == len(range(0, given, 4)) >= LEAST_SAMPLES
    assert seen("thorough", 100.0) == seen("normal", 100.0, tmp_path / "x.ranges") == given
    costs = iter([100.0])  # a sample is run once to tell, and what was told is not asked for again
    monkeypatch.setattr(work, "seconds", lambda runs: next(costs, 0.001))
    made = onnxq.quantize(path, tmp_path / "q.onnx", "w8a8", data=samples, check=False)
    assert f"16 of {given} samples gave ranges, as a run is much work; all do with --effort thorough" in made.notes


def counting(watched: list[int]) -> Callable[..., Observations]:
    """`calibrate.observe`, leaving how many samples there were."""
    observe = calibrate.observe

    def counted(model: ir.Model, names: list[str], samples: Data, *given: object, **options: object) -> Observations:
        watched.append(samples.count)
        return observe(model, names, samples, *given, **options)  # type: ignore[arg-type]

    return counted


def test_auto_is_one_of_the_methods(tmp_path: object) -> None:
    text = "g (float[N, 64] x) => (float[N, 8] y) { h = MatMul(x, v)  r = Relu(h)  y = MatMul(r, w) }"
    proto = tiny.model(text, {"v": tiny.normal(64, 64), "w": tiny.normal(64, 8)})
    path = tiny.save(proto, tmp_path)  # type: ignore[arg-type]
    samples = [{"x": tiny.normal(20, 64, seed=n) * (1 + 30 * (n == 4))} for n in range(12)]
    job = open_job(path, Recipe("w8a8"), data=samples)
    ranges = find_ranges(job)
    assert ranges.method in collectors.names()
    for method in collectors.names():
        other = find_ranges(open_job(path, Recipe("w8a8", calibration=method), data=samples))
        assert method != ranges.method or other == ranges
    assert pick_method.names()[0] == "auto"

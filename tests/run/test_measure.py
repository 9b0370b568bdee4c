"""What the bench sees in a model's outputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import spoiled_rows
import tiny
from hypothesis import given
from hypothesis import strategies as st

from onnxq.plan import Choice, Method, Plan
from onnxq.quality.decisions import LEAST_SCORES, scores_beside, scores_rare_events
from onnxq.samples.trials import Trial, Trials
from onnxq.tuning.plan_bench import WATCHED, PlanBench, _is_detector, _is_recurrent
from onnxq.tuning.refine import _growing


def test_scores_of_many_places_are_seen() -> None:
    scores = np.random.default_rng(0).uniform(0, 0.4, (1, 100, 3)).astype(np.float32)
    scores[0, 7, 1] = 0.9
    assert scores_rare_events(scores)


@pytest.mark.parametrize(
    "x",
    [
        np.linspace(-1, 1, 100),
        np.linspace(0, 1, 100).reshape(1, 100, 1),
        np.zeros(LEAST_SCORES - 1),
        np.full(100, np.nan),
        np.zeros(100, np.int64),
        np.eye(10)[[3]].repeat(20, axis=0),
    ],
    ids=["signed", "half of them large", "few", "nan", "integers", "classes"],
)
def test_other_outputs_are_no_scores(x: np.ndarray) -> None:
    assert not scores_rare_events(x)


def test_two_classes_at_many_places_are_scores() -> None:
    face = np.r_[np.full(95, 0.01), np.full(5, 0.99)]
    assert scores_rare_events(np.stack([1 - face, face], axis=-1)[None])


def test_a_gain_for_each_number_of_an_input_is_no_score() -> None:
    """As of a filter for noise: nothing is compared with a threshold. What has another shape may be."""
    gains = np.random.default_rng(0).uniform(0, 0.4, (1, 40, 33)).astype(np.float32)
    for shape, is_detector in ((gains.shape, False), ((1, 40, 34), True), ((1, 33, 40), True)):
        assert _is_detector({"x": np.zeros(shape, np.float32)}, [gains]) is is_detector


def test_states_are_seen_in_sequences_too() -> None:
    feed = {"x": np.zeros(3, np.float32), "h": np.zeros((1, 4), np.float32)}
    assert _is_recurrent(feed, [[np.zeros(2, np.float32), feed["h"]]])  # type: ignore[list-item]
    assert not _is_recurrent(feed, [[np.zeros(2, np.float32)]])  # type: ignore[list-item]


def test_scores_beside_boxes_have_the_bar_of_other_models() -> None:
    """At the bar of detectors no int8 kernel of a YOLO was left: their contrast is that of numbers nearly all 0."""
    scores = np.random.default_rng(0).uniform(0, 0.1, (1, 3, 100)).astype(np.float32)
    boxes = np.random.default_rng(1).uniform(0, 320, (1, 4, 100)).astype(np.float32)
    given = {"x": np.zeros((1, 3, 32, 32), np.float32)}
    assert scores_beside(np.concatenate([boxes, scores], axis=1)) is not None
    assert not _is_detector(given, [np.concatenate([boxes, scores], axis=1)])
    assert _is_detector(given, [boxes, scores.swapaxes(1, 2)])


@given(least=st.integers(0, 300), more=st.integers(0, 5000))
def test_growing_counts_begin_and_end_as_asked_and_are_few(least: int, more: int) -> None:
    counts = _growing(least, least + more)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (least, least + more)
    assert len(counts) <= 25


def test_the_bench_looks_at_the_worst_and_overlooks_nothing() -> None:
    """Each of eight rows of a weight meets the inputs of one label; plan number n spoils the first n rows."""
    bench, plan = spoiled_rows.bench(), spoiled_rows.plan
    bench.watch(plan(4))
    assert bench.quality(plan(4)).by_label().keys() == {f"row {i}" for i in range(WATCHED)}
    assert not bench.overlooks(plan(4))
    before = bench.quality(plan(8)).sqnr
    assert bench.overlooks(plan(8))
    assert bench.quality(plan(8)).sqnr < before - 3
    assert not bench.overlooks(plan(8))


def test_the_bench_overlooks_no_label_below_the_aim() -> None:
    """Row i of a weight, which meets the inputs of label i, has an error that grows with i: 20 to 12 dB."""
    errors = np.array([0.1, 0.1, 0.15, 0.18, 0.2, 0.25], np.float32)[:, None]

    def model(spoiled: int) -> ir.Model:
        w = np.tile(np.array([1, -1], np.float32), (6, 8))
        w[:spoiled] *= 1 + errors[:spoiled]
        return tiny.read(tiny.model("g (float[N, 6] x) => (float[N, 16] y) { y = MatMul(x, w) }", {"w": w}))

    def plan(spoiled: int) -> Plan:
        return Plan("w8a8", "ort-cpu", {str(i): Choice(str(i), "MatMul", Method.STORED) for i in range(spoiled)})

    samples = tuple(Trial(f"row {i}", {"x": np.eye(6, dtype=np.float32)[[i]]}) for i in range(6))
    bench = PlanBench(model(0), lambda plan: model(len(plan.choices)), Trials(samples))
    bench.watch(plan(5))
    assert "row 5" not in bench.quality(plan(6)).by_label()
    seen = bench.quality(plan(6)).sqnr  # row 5 is worse by 1.9 dB
    assert not bench.overlooks(plan(6)) and not bench.overlooks(plan(6), seen + 1)
    assert bench.overlooks(plan(6), seen - 1)
    assert bench.quality(plan(6)).sqnr < seen - 1 and not bench.overlooks(plan(6), seen - 1)


@pytest.mark.parametrize("rows", [[1, 40], [1] * 20], ids=["one-of-many-rows", "many-of-one-row"])
def test_single_scores_are_not_what_plans_are_compared_by(rows: list[int]) -> None:
    """A label's first sample has one number, of which nothing can be told; the others tell."""

    def model(spoiled: bool) -> ir.Model:
        w = np.ones((8, 1), np.float32)
        w[1:] *= 1 + 0.3 * spoiled
        return tiny.read(tiny.model("g (float[N, 8] x) => (float[N, 1] y) { y = MatMul(x, w) }", {"w": w}))

    spoiled = Plan("w8a8", "ort-cpu", {"n": Choice("n", "MatMul", Method.STORED)})
    first, rest = np.eye(8, dtype=np.float32)[[0]], np.ones((40, 8), np.float32)
    feeds = [{"x": first if number == 0 else rest[:n]} for number, n in enumerate(rows)]
    bench = PlanBench(
        model(False), lambda plan: model(len(plan.choices) > 0), Trials(tuple(Trial("scores", x) for x in feeds))
    )
    bench.watch(spoiled)
    assert 10 < bench.quality(spoiled).sqnr < 15

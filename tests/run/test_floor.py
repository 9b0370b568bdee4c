"""`--min-sqnr` means one thing: what the user typed is reached by longer formats, or nothing is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

import onnxq
from onnxq import pipeline
from onnxq.checking.models import Check
from onnxq.checking.verdict import require_quality
from onnxq.drafts import tuned as drafts
from onnxq.errors import CheckFailed
from onnxq.job import open_job
from onnxq.recipe import AIM, Recipe, Rule

pytestmark = pytest.mark.usefixtures("quick")
TEXT = "g (float[N, 96] x) => (float[N, 24] y) { h = MatMul(x, v)  r = Relu(h)  i = MatMul(r, w)  y = MatMul(i, u) }"
SAMPLES = [{"x": tiny.normal(20, 96, seed=n) * 5} for n in range(12)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {"v": tiny.normal(96, 96), "w": tiny.normal(96, 96, seed=1), "u": tiny.normal(96, 24, seed=2)}
    return tiny.save(tiny.model(TEXT, weights), tmp_path)


@pytest.mark.parametrize(
    ("scheme", "floor"),
    [
        # Each floor by two schemes, a low and a high one for each; the sweep takes the rest.
        pytest.param(scheme, floor, marks=pytest.mark.sweep if (i + j) % 2 else ())
        for i, scheme in enumerate(["w4a16", "w8a8-dynamic", "w8a8", "int3"])
        for j, floor in enumerate([20.0, 33.0, 45.0, 70.0])
    ],
)
def test_a_floor_is_reached_to_the_last_decimal(model: Path, scheme: str, floor: float) -> None:
    recipe = Recipe(scheme, min_sqnr=floor, keep_slow=True)
    result = onnxq.quantize(model, model.with_name("q.onnx"), recipe, target="onnxq", data=SAMPLES)
    assert result.check is not None and result.check.sqnr >= floor


def coarse_plan(model: Path) -> onnxq.Plan:
    """What two bits make of the model, without tuning: some 8 dB."""
    return open_job(model, "int2", "onnxq").plan


def test_without_a_floor_coarse_files_are_written_with_a_warning(model: Path) -> None:
    plan, output = coarse_plan(model), model.with_name("q.onnx")
    result = onnxq.quantize(model, output, "int2", target="onnxq", plan=plan)
    assert result.check is not None and result.check.sqnr < AIM
    assert any("less than the 20 dB that onnxq aims for" in note for note in result.check.notes)
    assert output.exists()


def test_without_a_floor_longer_formats_reach_the_aim(model: Path) -> None:
    result = onnxq.quantize(model, model.with_name("q.onnx"), "nf4", target="onnxq")
    assert {choice.format for choice in result.plan} > {"nf4"}
    assert result.check is not None and result.check.sqnr >= AIM
    assert not any("aims for" in note for note in result.check.notes)


@pytest.mark.parametrize("word", ["pow2_int4", "uniform3"])
def test_a_format_that_was_named_is_honoured_and_its_cost_said(model: Path, word: str) -> None:
    result = onnxq.quantize(model, model.with_name("q.onnx"), word, target="onnxq")
    assert {choice.format for choice in result.plan} == {word}
    assert result.check is not None and result.check.sqnr < AIM
    assert any("less than the 20 dB that onnxq aims for" in note for note in result.check.notes)


def test_a_format_that_a_rule_names_is_honoured(model: Path) -> None:
    named = next(iter(coarse_plan(model))).node
    recipe = Recipe("nf4", rules=(Rule("int2", nodes=named),))
    result = onnxq.quantize(model, model.with_name("q.onnx"), recipe, target="onnxq")
    assert result.plan.choices[named].format == "int2"


def test_a_floor_fails_where_the_plan_is_given(model: Path) -> None:
    with pytest.raises(CheckFailed, match="less than the 20 dB asked for"):
        onnxq.quantize(
            model, model.with_name("q.onnx"), Recipe("int2", min_sqnr=20), target="onnxq", plan=coarse_plan(model)
        )
    assert not model.with_name("q.onnx").exists()


def worse_by(decibel: float, checks: list[float]) -> Callable[..., Check]:
    """A check on whose samples, or by whose optimizer, the outputs are worse than those that the tuner saw."""
    honest = pipeline.check_saved

    def check(*arguments: object) -> Check:
        found = honest(*arguments)  # type: ignore[arg-type]
        checks.append(found.sqnr - decibel)
        return dataclasses.replace(found, sqnr=found.sqnr - decibel)

    return check


def test_an_unlucky_check_tunes_once_more(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[float] = []
    monkeypatch.setattr(pipeline, "check_saved", worse_by(6.0, checks))
    tuned = onnxq.quantize(model, model.with_name("q.onnx"), Recipe("w4a16", min_sqnr=36))
    assert tuned.check is not None
    assert checks[0] < 36 <= checks[-1] == tuned.check.sqnr
    assert len(checks) <= 1 + drafts.RETRIES


def test_what_no_format_reaches_fails_after_all_were_tried(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[float] = []
    monkeypatch.setattr(pipeline, "check_saved", worse_by(25.0, checks))
    with pytest.raises(CheckFailed, match="less than the 60 dB asked for"):
        onnxq.quantize(model, model.with_name("q.onnx"), Recipe("w4a16", min_sqnr=60), force=True)
    assert len(checks) <= 1 + drafts.RETRIES
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("sqnr", "floor", "words"),
    [
        (19.9, 20.0, r"reach 19\.9 dB, less than the 20 dB asked"),
        (19.98, 20.0, r"reach 19\.980 dB, less than the 20 dB"),
    ],
)
def test_a_tenth_of_a_decibel_counts(sqnr: float, floor: float, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        require_quality(Check("", sqnr, sqnr, sqnr), Recipe(min_sqnr=floor))
    assert require_quality(Check("", sqnr, sqnr, sqnr), Recipe()).notes
    assert not require_quality(Check("", 20.0, 20.0, 20.0), Recipe(min_sqnr=20)).notes
    assert not require_quality(Check("", float("nan"), 0, 0), Recipe(min_sqnr=20)).notes

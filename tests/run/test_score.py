"""A score of the user's own, and how far it may fall."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import Recipe, Result, quantize
from onnxq.cli import main
from onnxq.errors import BadRecipe, CheckFailed, OnnxqError
from onnxq.tuning.aim_search import EVALUATIONS, NEAR, AimSearch

TEXT = "m (float[N, 96] x) => (float[N, 64] y) { h = MatMul(x, W1) r = Relu(h) y = MatMul(r, W2) }"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(TEXT, {"W1": tiny.normal(96, 128), "W2": tiny.normal(128, 64, seed=1)}), tmp_path)


def inputs(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((32, 96)).astype(np.float32)


def likeness(model: Path) -> Callable[[str], float]:
    """Scores a model by minus the distance from the float one, in tenths of a percent of its outputs' size."""
    run = lambda path: onnxruntime.InferenceSession(str(path)).run(None, {"x": inputs(9)})[0]  # noqa: E731
    wanted = run(model)
    return lambda path: -1000 * float(np.linalg.norm(run(path) - wanted) / np.linalg.norm(wanted))


def made(model: Path, **options: object) -> Result:
    data = [{"x": inputs(i)} for i in range(8)]
    return quantize(model, model.parent / "o.onnx", Recipe("int4"), data=data, force=True, **options)


@pytest.mark.parametrize("allowed", [300.0, 50.0, 20.0, 1.0])
def test_a_score_falls_by_no_more_than_it_may(model: Path, allowed: float) -> None:
    result = made(model, evaluate=likeness(model), max_drop=allowed)
    assert result.score is not None and result.score.in_float == 0
    assert result.score.drop <= allowed
    assert result.score.quantized == likeness(model)(str(result.output))  # of the file that is there in the end
    assert result.score.evaluations <= EVALUATIONS


def test_a_smaller_drop_takes_longer_formats(model: Path) -> None:
    sizes = [made(model, evaluate=likeness(model), max_drop=allowed).bytes_after for allowed in (300.0, 20.0, 1.0)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_without_a_limit_the_score_is_only_told(model: Path) -> None:
    result = made(model, evaluate=likeness(model))
    assert result.score is not None and result.score.drop > 20
    assert result.score.evaluations == 1
    assert json.loads(result.to_json())["score"]["quantized"] == result.score.quantized


def test_where_no_plan_keeps_the_score_nothing_is_written(model: Path) -> None:
    with pytest.raises(CheckFailed, match=r"^the score falls from 1 to 0, by more than the 0.1 allowed: .*--max-drop$"):
        made(model, evaluate=lambda path: float(Path(path) == model), max_drop=0.1)
    assert not (model.parent / "o.onnx").exists()


def test_a_plan_that_is_given_is_scored_and_not_changed(model: Path) -> None:
    plan = made(model).plan
    with pytest.raises(CheckFailed, match="the score falls"):
        made(model, plan=plan, evaluate=likeness(model), max_drop=1.0)
    assert made(model, plan=plan, evaluate=likeness(model), max_drop=300.0).plan == plan


def test_a_function_of_a_session_gets_one_that_runs_our_operators(model: Path) -> None:
    def score(session: onnxruntime.InferenceSession) -> float:
        return float(np.abs(session.run(None, {"x": inputs(0)})[0]).sum())

    result = made(model, evaluate=score, target="onnxq")
    assert result.score is not None and result.score.quantized == pytest.approx(result.score.in_float, rel=0.2)
    assert any(node.domain == "onnxq" for node in onnx.load(result.output).graph.node)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda path: math.nan, "gave nan for"),
        (lambda path: "good", "gave 'good' for"),
        (lambda path: None, "gave None for"),
        (lambda path: 1 / 0, "failed with ZeroDivisionError: division by zero"),
        (lambda: 1.0, "is called with the path of a model, but takes nothing"),
        (lambda path: 10**400, "gave 1000000.*… for"),
        (lambda path: object(), "gave something of type object for"),
    ],
    ids=["nan", "text", "none", "raises", "no-parameter", "beyond floats", "of any type"],
)
def test_a_function_that_gives_no_number_is_one_sentence(
    model: Path, function: Callable[..., float], said: str
) -> None:
    with pytest.raises(BadRecipe, match=said) as raised:
        made(model, evaluate=function)
    assert "\n" not in str(raised.value)
    assert not (model.parent / "o.onnx").exists()


@pytest.mark.parametrize("max_drop", [-1.0, math.nan, math.inf])
def test_a_drop_that_is_none_is_refused(model: Path, max_drop: float) -> None:
    with pytest.raises(BadRecipe, match="invalid --max-drop"):
        made(model, evaluate=likeness(model), max_drop=max_drop)


def test_a_drop_of_no_score_is_refused(model: Path) -> None:
    with pytest.raises(BadRecipe, match="--max-drop is about a score: give --evaluate"):
        made(model, max_drop=0.1)


def test_on_the_command_line(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    (model.parent / "my_score.py").write_text("def score(path):\n    return 0.75 if 'model' in path else 0.5\n")
    line = ["quantize", "model.onnx", "-w", "int4", "-o", "o.onnx", "--evaluate", "my_score:score"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    assert "score" in done.output and "0.75 → 0.5" in done.output and "0.25 lower" in done.output
    assert CliRunner().invoke(main, [*line[:-1], "my_score:none", "-f"]).exit_code == 1
    assert CliRunner().invoke(main, [*line, "--max-drop", "0.1", "-f"]).exit_code == 1


def test_a_score_lies_in_a_file_too_and_may_fall_by_a_share(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    folder = model.parent / "mine"
    folder.mkdir()
    (folder / "beside_it.py").write_text("WORST = 0.5\n")
    # A name that the standard library has too, and a neighbour that it imports.
    (folder / "json.py").write_text(
        "from beside_it import WORST\ndef score(path):\n    return 0.75 if 'model' in path else WORST\n"
    )
    line = ["quantize", "model.onnx", "-w", "int4", "-o", "o.onnx", "--evaluate", "mine/json.py:score"]
    done = CliRunner().invoke(main, [*line, "--max-drop", "25%"])
    assert done.exit_code == 0, done.output
    assert "0.25 lower, may be 0.25 lower" in done.output
    assert "__file__" in vars(json) and Path(json.__file__).parent != folder
    refused = CliRunner().invoke(main, [*line, "--max-drop", "little", "-f"])
    assert refused.exit_code == 1 and "--max-drop: invalid number 'little'; examples: 0.005, 0.5%" in refused.output


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("gone.py:score", "there is no file 'gone.py'"),
        ("there.py:scores", "'there.py' has no 'scores'; it has 'score'"),
        ("there:other", "'there' has no 'other'$"),
        ("broken.py:score", "failed with SyntaxError"),
        ("there.py", "is not spelled module:function"),
    ],
)
def test_a_word_for_a_score_that_is_wrong_says_what(
    model: Path, monkeypatch: pytest.MonkeyPatch, word: str, said: str
) -> None:
    monkeypatch.chdir(model.parent)
    (model.parent / "there.py").write_text("def score(path):\n    return 1.0\n")
    (model.parent / "broken.py").write_text("def score(path)\n")
    with pytest.raises(BadRecipe, match=said):
        made(model, evaluate=word)
    assert "broken" not in sys.modules


@pytest.mark.parametrize("one", [np.array(0.5), np.array([0.5]), np.float32(0.5), np.int64(2)], ids=repr)
def test_an_array_of_one_number_is_a_score(model: Path, one: Any) -> None:
    result = made(model, evaluate=lambda path: one)
    assert result.score is not None and result.score.quantized == float(one.item())


@pytest.mark.parametrize("several", [np.zeros(2), np.array("good"), np.array(None)], ids=repr)
def test_arrays_of_others_are_none(model: Path, several: Any) -> None:
    with pytest.raises(BadRecipe, match="gave something of type ndarray for"):
        made(model, evaluate=lambda path: several)


@pytest.mark.parametrize(
    ("in_float", "quantized", "is_told"), [(0.1, 0.2, True), (0.5, 0.505, False), (0.2, 0.1, False)]
)
def test_a_score_that_rises_may_be_a_loss(model: Path, in_float: float, quantized: float, is_told: bool) -> None:
    result = made(model, evaluate=lambda path: in_float if Path(path) == model else quantized)
    assert is_told == any("if it is a loss" in note for note in result.notes)


@given(st.floats(0, 100), st.floats(0, 60))
def test_the_search_ends_near_the_lowest_aim_that_passes(needed: float, first: float) -> None:
    search, reached = AimSearch(), first
    search.tell(reached, passes=reached >= needed)
    while (aim := search.next()) is not None:
        reached = aim
        search.tell(reached, passes=reached >= needed)
    assert search.count <= EVALUATIONS
    if first >= needed:
        assert search.count == 1
    elif search.passed is not None and search.count < EVALUATIONS:
        assert search.passed - needed <= max(NEAR, search.passed - (search.failed or 0.0))
        assert search.passed - (search.failed or 0.0) <= NEAR


def test_errors_are_ours(model: Path) -> None:
    with pytest.raises(OnnxqError, match=r"--evaluate 'no_such_module:f' failed with ModuleNotFoundError"):
        made(model, evaluate="no_such_module:f")


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"xx"), os.remove, os.utime])
def test_a_function_that_changes_what_it_scores_is_refused(model: Path, change: Any) -> None:
    def changing(path: str) -> float:
        change(Path(path))
        return 1.0

    before = model.read_bytes()
    score = lambda path: 1.0 if path == str(model) else changing(path)  # noqa: E731
    with pytest.raises(BadRecipe, match="the file that it was to score: let it work on a copy"):
        quantize(model, model.with_name("out.onnx"), "w4a16", evaluate=score)
    assert model.read_bytes() == before and not model.with_name("out.onnx").exists()

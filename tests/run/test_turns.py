"""Data that know one number of turns of a Loop: others are looked at too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq.calibration.turns import turns_of
from onnxq.model.load import load_model
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
Samples = list[dict[str, NDArray]]


def shrinking(folder: Path) -> Path:
    """Every turn makes numbers a tenth of what they are, so that those behind a turn say nothing of those before."""
    body = """
    g (float[batch, 48] x, int64[1] n) => (float[batch, 16] y) {
        m = Squeeze(n)
        always = Constant<value = bool {1}>()
        last = Loop(m, always, x) <
            body = turn (int64 i, bool go, float[batch, 48] h) => (bool go_on, float[batch, 48] smaller) {
                go_on = Identity(go)
                p = MatMul(h, w)
                t = Tanh(p)
                smaller = Mul(t, tenth)
            }
        >
        a = MatMul(last, w1)
        r = Relu(a)
        y = MatMul(r, w2)
    }"""
    constants = {"w": tiny.normal(48, 48), "w1": tiny.normal(48, 64, seed=1), "w2": tiny.normal(64, 16, seed=2)}
    return tiny.save(tiny.model(body, constants | {"tenth": np.array([0.1], np.float32)}), folder)


def samples(turns: int, count: int = 16) -> Samples:
    rng = np.random.default_rng(turns)
    return [
        {"x": rng.standard_normal((4, 48), dtype=np.float32), "n": np.array([turns], np.int64)} for _ in range(count)
    ]


def decibels(path: Path, output: Path, turns: int) -> float:
    a, b = Session(path), Session(output)
    return tiny.sqnr(*(np.concatenate([each.run(feed)[0] for feed in samples(turns)]) for each in (a, b)))


def test_a_loop_that_takes_no_turn_returns_what_the_data_never_show(tmp_path: Path) -> None:
    path, output = shrinking(tmp_path), tmp_path / "q.onnx"
    result = onnxq.quantize(path, output, onnxq.Recipe("w8a8", keep_slow=True), data=samples(2))
    check = result.check
    assert check is not None and result.plan.changes_anything
    assert {"data", "the data at n = 0", "the data at n = 1", "the data at n = 4"} == set(check.kinds)
    assert any("input 'n', a number of turns, is 2 in all of the data: checked at other" in s for s in check.notes)
    assert min(decibels(path, output, turns) for turns in (0, 1, 2, 4)) > 20


def test_numbers_of_turns_that_differ_are_the_users(tmp_path: Path) -> None:
    data = [feed for turns in (0, 2) for feed in samples(turns, 8)]
    result = onnxq.quantize(shrinking(tmp_path), tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), data=data)
    assert result.check is not None
    assert not any("turns" in note for note in result.check.notes)
    assert not [kind for kind in result.check.kinds if "n =" in kind]


def test_what_is_no_number_of_turns_is_left_alone(tmp_path: Path) -> None:
    """The largest integer means that something else ends the Loop; and small types hold no twice as many."""
    model = load_model(shrinking(tmp_path))
    for counts, others in (
        ([2**63 - 1], None),
        ([-1], None),
        ([2.0], None),
        ([], None),
        ([0], [1]),
        ([100], [0, 1, 200]),
    ):
        found = turns_of(model, [{"n": np.array(counts)}])
        assert (found[0].others if found else None) == others
    (found_small,) = turns_of(model, [{"n": np.array([100], np.int8)}])
    assert found_small.others == [0, 1, 127]

"""What the bench sees in a model's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxq.measure import LEAST_SCORES, _scores_rare_events
from onnxq.refine import _growing


def test_scores_of_many_places_are_seen() -> None:
    scores = np.random.default_rng(0).uniform(0, 0.4, (1, 100, 3)).astype(np.float32)
    scores[0, 7, 1] = 0.9
    assert _scores_rare_events(scores)


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
    assert not _scores_rare_events(x)


def test_two_classes_at_many_places_are_scores() -> None:
    face = np.r_[np.full(95, 0.01), np.full(5, 0.99)]
    assert _scores_rare_events(np.stack([1 - face, face], axis=-1)[None])


@given(least=st.integers(0, 300), more=st.integers(0, 5000))
def test_growing_counts_begin_and_end_as_asked_and_are_few(least: int, more: int) -> None:
    counts = _growing(least, least + more)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (least, least + more)
    assert len(counts) <= 25

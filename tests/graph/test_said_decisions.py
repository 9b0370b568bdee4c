"""Outputs that say decisions themselves: what figures are made of them, alone and beside numbers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import DTypeLike

from onnxq.quality import MAX_DB, UNEQUAL_DB, compare_outputs


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.str_, object])
def test_integers_and_texts_are_decisions(dtype: DTypeLike) -> None:
    """Where there is nothing else, the figures are those of as much noise as flips one in eight."""
    wanted, got = np.array([0, 1, 1, 0, 1, 1, 0, 0]).astype(dtype), np.array([0, 1, 1, 0, 1, 1, 0, 1]).astype(dtype)
    quality = compare_outputs(["y"], [[wanted]], [[got]])
    assert quality.flips == 1 / 8 and np.isnan(quality.kld)
    assert quality.sqnr == quality.contrast == pytest.approx(-20 * np.log10(np.tan(np.pi / 8)))
    assert quality.noise_ratio() == pytest.approx(np.tan(np.pi / 8) ** 2)
    assert quality.outputs == {"y"}
    same = compare_outputs(["y"], [[wanted]], [[wanted]])
    assert same.flips == 0 and same.sqnr == MAX_DB
    assert compare_outputs(["y"], [[wanted]], [[got[1:]]]).sqnr == -MAX_DB


def test_decisions_beside_numbers_are_counted_and_leave_the_figures_alone() -> None:
    """But for what is said of outputs that are equal."""
    x, classes = np.array([1.0, 2.0]), np.array([3, 4])
    quality = compare_outputs(["x", "id"], [[x, classes]], [[x, classes + 1]])
    assert quality.flips == 1 and quality.sqnr == UNEQUAL_DB and quality.outputs == {"x"}
    quality.merge(compare_outputs(["x", "id"], [[x, classes]], [[x, classes]]))
    assert quality.flips == 0.5


def test_most_truth_values_being_the_contrary_is_no_noise() -> None:
    """Labels and few values leave the figures of numbers alone, and so does chance."""
    x, truths = np.arange(40.0), np.arange(40) % 3 == 0
    for got, is_seen in ((~truths, True), (np.roll(truths, 1), True), (np.zeros(40, bool), False)):
        quality = compare_outputs(["x", "is"], [[x, truths]], [[x, got]])
        assert (quality.sqnr < 0) is is_seen and quality.outputs == ({"x", "is"} if is_seen else {"x"})
    quality = compare_outputs(["x", "is"], [[x, truths[:9]]], [[x, ~truths[:9]]])
    assert quality.sqnr == UNEQUAL_DB
    quality = compare_outputs(["x", "is"], [[x, truths.astype(int)]], [[x, 1 - truths]])
    assert quality.sqnr == UNEQUAL_DB

"""Channels that are scaled in one of two models and taken back behind: no error, and an error where nobody does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from layered import CHAIN, IMAGE, WEIGHTS, compared, rows
from tiny import model, normal

from onnxq.checking.compare import LIMIT
from onnxq.samples.sampling import Sampling

#: [channels] As balancing would have it: no two alike, some up, some down.
SCALES = np.exp2(np.linspace(-3, 2, 8)).astype(np.float32)


@pytest.fixture
def more_data(tmp_path: Path) -> Sampling:
    np.savez(tmp_path / "more.npz", x=normal(16, 4, 8, seed=3) * 4)
    return Sampling(str(tmp_path / "more.npz"))


def test_scales_that_the_next_layer_takes_back_are_no_error(tmp_path: Path, more_data: Sampling) -> None:
    scaled = {"w1": WEIGHTS["w1"] * SCALES, "w2": WEIGHTS["w2"] / SCALES[:, None]}
    found = rows(compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, scaled), more_data))
    assert [found[name].is_scaled for name in "abcy"] == [True, True, False, False]
    assert all(layer.sqnr > 100 and layer.local_sqnr is not None and layer.local_sqnr > 100 for layer in found.values())


def test_behind_scales_a_fault_is_found_where_it_is(tmp_path: Path, more_data: Sampling) -> None:
    wrong = (WEIGHTS["w2"] + 0.01 * normal(8, 8, seed=7)) / SCALES[:, None]
    scaled = {"w1": WEIGHTS["w1"] * SCALES, "w2": wrong}
    found = rows(compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, scaled), more_data))
    assert found["a"].is_scaled and found["a"].sqnr > 100 and found["c"].role == "adds"
    # Its own error is that of the weights alone, as it would be without scales.
    unscaled = WEIGHTS | {"w2": wrong * SCALES[:, None]}
    plain = rows(compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, unscaled), more_data))
    assert found["c"].local_sqnr == pytest.approx(plain["c"].local_sqnr, abs=0.1)


def test_scales_that_nobody_takes_back_are_error(tmp_path: Path, more_data: Sampling) -> None:
    found = compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, WEIGHTS | {"w1": WEIGHTS["w1"] * SCALES}), more_data)
    assert not any(layer.is_scaled for layer in found.layers)
    assert [layer.a for layer in found.adding] == ["a"] and found.layers[0].sqnr < 10


def test_scales_of_an_output_are_error(tmp_path: Path, more_data: Sampling) -> None:
    both = CHAIN.replace("(float[4, 8] y) {", "(float[4, 8] y, float[4, 8] b) {")
    scaled = {"w1": WEIGHTS["w1"] * SCALES, "w2": WEIGHTS["w2"] / SCALES[:, None]}
    found = rows(compared(tmp_path, model(both, WEIGHTS), model(both, scaled), more_data))
    assert not found["b"].is_scaled and found["b"].sqnr < 10


def test_of_few_numbers_no_scale_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=normal(3, 4, 8, seed=3) * 4)
    scaled = {"w1": WEIGHTS["w1"] * SCALES, "w2": WEIGHTS["w2"] / SCALES[:, None]}
    found = compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, scaled), Sampling(str(tmp_path / "few.npz")))
    assert not any(layer.is_scaled for layer in found.layers) and found.layers[0].sqnr < 10


def test_a_scale_is_told_of_one_number_of_each_sample_that_is_looked_at(tmp_path: Path) -> None:
    """Behind the last convolution of a classifier there are no more."""
    np.savez(tmp_path / "rows.npz", x=normal(LIMIT, 1, 8, seed=3) * 4)
    row = CHAIN.replace("4, 8", "1, 8")
    scaled = {"w1": WEIGHTS["w1"] * SCALES, "w2": WEIGHTS["w2"] / SCALES[:, None]}
    found = rows(compared(tmp_path, model(row, WEIGHTS), model(row, scaled), Sampling(str(tmp_path / "rows.npz"))))
    assert [found[name].is_scaled for name in "abcy"] == [True, True, False, False]


def test_scaled_channels_of_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=normal(2, 1, 8, 6, 6, seed=5))
    w, images = normal(8, 8, 3, 3, seed=6), Sampling(str(tmp_path / "images.npz"))
    apart = IMAGE.replace("(b, w)", "(b, v)")
    scaled = {"w": w * SCALES[:, None, None, None], "v": w / SCALES[:, None, None]}
    found = rows(compared(tmp_path, model(apart, {"w": w, "v": w}), model(apart, scaled), images))
    assert [found[name].is_scaled for name in "aby"] == [True, True, False]
    assert min(layer.sqnr for layer in found.values()) > 100

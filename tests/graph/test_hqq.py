"""HQQ: its own error never grows, and it serves formats with minima."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import formats
from onnxq.algorithms import hqq, mse, rtn
from onnxq.formats import Granularity


def weights(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) ** 3).astype(np.float32)


# Of nested scales each depends on all others, so single groups may lose.
@pytest.mark.pairwise
@pytest.mark.parametrize("word", [name for name in formats.names() if formats.get(name).base is None])
@pytest.mark.parametrize("shape", [(6, 64), (3, 37), (1, 1)], ids=["6x64", "3x37", "1x1"])
@pytest.mark.parametrize("granularity", [Granularity(), Granularity(0), Granularity(1, 32)], ids=str)
def test_its_error_is_never_more_than_that_of_rtn(word: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    w, format = weights(shape), formats.get(word)
    found, plain = (each.quantize(w, format, granularity) for each in (hqq, rtn))
    assert np.isfinite(found.dequantize()).all()
    assert (hqq.errors_of(w, found) <= hqq.errors_of(w, plain) * (1 + 1e-5)).all()


@pytest.mark.parametrize("word", ["uint4", "uint2", "q4_1", "uniform3"])
def test_it_pays_where_there_is_something_to_fit(word: str) -> None:
    w, how = weights((64, 128)), Granularity(1, 32)
    found, plain, squares = (each.quantize(w, formats.get(word), how) for each in (hqq, rtn, mse))
    assert hqq.errors_of(w, found).sum() < 0.97 * hqq.errors_of(w, plain).sum()
    assert hqq.errors_of(w, found).sum() < hqq.errors_of(w, squares).sum()


@pytest.mark.parametrize("word", ["q4_1", "q5_1", "uniform3"])
def test_minima_that_are_fitted_save_squares_too(word: str) -> None:
    w, how = weights((64, 128)), Granularity(1, 32)
    found, squares = (each.quantize(w, formats.get(word), how).dequantize() - w for each in (hqq, mse))
    assert np.square(found).sum() < 0.95 * np.square(squares).sum()


def test_weights_that_have_codes_of_their_own_keep_them() -> None:
    codes = np.random.default_rng(4).integers(0, 16, (24, 96)).astype(np.float32) - 5
    codes[:, ::32], codes[:, 1::32] = -5, 10
    found = hqq.quantize(codes / 4, formats.get("uint4"), Granularity(1, 32))
    np.testing.assert_array_equal(found.dequantize(), codes / 4)


def test_scales_that_are_given_are_kept() -> None:
    w, format = weights((8, 64)), formats.get("uint4")
    scales, zeros = format.fit(w, Granularity(1, 32))
    found = hqq.quantize(w, format, Granularity(1, 32), scales * np.float32(0.9), zeros)
    np.testing.assert_array_equal(found.scales, scales * np.float32(0.9))

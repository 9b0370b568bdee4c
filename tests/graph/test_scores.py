"""Single figures of a quantization, each against a transcription of its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxq import analysis, formats
from onnxq.errors import BadModel, NothingToDo
from onnxq.formats import Granularity
from onnxq.quality import MAX_DB

W = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)


@pytest.mark.parametrize("how", [Granularity(), Granularity(0), Granularity(1, 32)], ids=str)
def test_rounding_stays_within_half_a_step(how: Granularity) -> None:
    q = formats.quantize(W, "int8", how)
    assert q.scales is not None
    steps = how.spread(q.scales, W.shape)
    assert analysis.error_within_bounds(W, q.dequantize(), steps)
    assert not analysis.error_within_bounds(W, q.dequantize(), steps * np.float32(0.9))
    worse = q.dequantize()
    worse[3, 5] += np.broadcast_to(steps, W.shape)[3, 5]
    assert not analysis.error_within_bounds(W, worse, steps)


def test_bounds_of_nothing_and_of_what_is_none() -> None:
    assert analysis.error_within_bounds([], [], 0.1)
    assert analysis.error_within_bounds([1.0], [1.25], -0.5)  # the sign of a scale is not that of a step
    with pytest.raises(ValueError, match="not finite"):
        analysis.error_within_bounds([1, np.nan], [1, 2], 1)
    with pytest.raises(ValueError, match="where \\[2\\] belongs"):
        analysis.error_within_bounds([1, 2], [1, 2, 3], 1)
    with pytest.raises(ValueError, match="do not belong to numbers of"):
        analysis.error_within_bounds([1, 2], [1, 2], [1, 2, 3])


def test_sensitivity_is_the_coefficient_of_variation_of_the_error() -> None:
    points = analysis.scale_sweep(W, "int4", factors=(0.8, 1.0, 1.2))
    scale, errors = np.abs(W).max() / np.float32(7), []
    for factor in (0.8, 1.0, 1.2):
        s = np.float32(scale * np.float32(factor))
        errors.append(np.mean((np.clip(np.rint(W / s), -8, 7) * s - W) ** 2))
    assert analysis.scale_sensitivity(points) == pytest.approx(np.std(errors) / np.mean(errors), rel=1e-5)
    assert analysis.scale_sensitivity(points[:1]) == 0
    assert analysis.scale_sensitivity(analysis.scale_sweep(W * 0, "int8")) == 0
    with pytest.raises(ValueError):
        analysis.scale_sensitivity([])


@pytest.mark.parametrize("threshold", [0.5, 2.0, 3.0])
def test_outliers_are_so_many_deviations_away(threshold: float) -> None:
    x = W.astype(np.float64) + 7
    wanted = np.mean(np.abs(x - x.mean()) / x.std() > threshold)
    assert analysis.outlier_rate(x, threshold) == wanted
    assert analysis.outlier_rate(np.ones(5)) == analysis.outlier_rate([]) == 0
    normal = np.random.default_rng(1).standard_normal(400_000)
    assert analysis.outlier_rate(normal, threshold) == pytest.approx(math.erfc(threshold / math.sqrt(2)), rel=0.1)
    with pytest.raises(BadModel):
        analysis.outlier_rate([np.nan])
    for bad in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="above zero"):
            analysis.outlier_rate(W, bad)


def test_compression_counts_scales_and_zero_points() -> None:
    q = formats.quantize(W, "uint4", Granularity(1, 32))
    nbytes = W.size / 2 + (4 + 0.5) * W.size / 32
    assert analysis.compression_ratio(q) == W.nbytes / nbytes
    assert analysis.compression_ratio(q, 16) == W.nbytes / nbytes / 2
    assert analysis.compression_ratio(analysis.tensor_error(W, "uint4", Granularity(1, 32))) == W.nbytes / nbytes
    with pytest.raises(ValueError):
        analysis.compression_ratio(q, 0)


def test_the_score_is_one_less_the_share_of_the_error() -> None:
    for word in ("int4", "int8"):
        got = formats.quantize(W, word).dequantize().astype(np.float64)
        share = np.sqrt(np.sum((got - W) ** 2) / np.sum(W.astype(np.float64) ** 2))
        assert analysis.quality_score(analysis.error_stats(W, got)) == pytest.approx(100 * (1 - share), rel=1e-9)
    assert analysis.quality_score(analysis.error_stats(W, W)) == 100
    assert analysis.quality_score(analysis.error_stats(W, -W)) == 0
    assert analysis.error_stats(W, W).sqnr == MAX_DB


def test_the_best_has_the_least_squared_error() -> None:
    found = analysis.compare_formats(W, ("int4", "nf4", "int8", "uniform4"))
    errors = {word: np.mean((formats.quantize(W, word).dequantize() - W) ** 2) for word in found}
    assert list(found) == ["int4", "nf4", "int8", "uniform4"]
    for word, stats in found.items():
        assert stats.mse == pytest.approx(errors[word], rel=1e-6)
    assert analysis.best_by_mse(found) == min(errors, key=lambda word: errors[word]) == "int8"
    assert analysis.best_by_mse(analysis.compare_formats(np.zeros((4, 64)), ("int8", "int4"))) == "int4"  # fewer bits
    with pytest.raises(ValueError):
        analysis.best_by_mse({})
    widths = analysis.compare_bit_widths(W, (3, 5, 4))
    assert analysis.best_by_mse(widths) == 5


def test_formats_that_cannot_hold_the_numbers_are_left_out() -> None:
    large = np.full((2, 32), 1e30, np.float32)
    assert "float16" not in analysis.compare_formats(large) and "int8" in analysis.compare_formats(large)
    with pytest.raises(NothingToDo, match="no format holds these numbers"):
        analysis.compare_formats(large, ("float16",))
    with pytest.raises(BadModel, match="holds nan"):
        analysis.compare_formats([np.nan])


def test_widths_over_the_range_as_it_is() -> None:
    """[2, 5] keeps [2, 5]: the error of s = 3/(2^b − 1), not of 5/(2^b − 1)."""
    x = np.random.default_rng(2).uniform(2, 5, 20_000)
    kept = analysis.compare_bit_widths(x, (4, 8), symmetric=False, widen=False)
    wide = analysis.compare_bit_widths(x, (4, 8), symmetric=False)
    for bits in (4, 8):
        assert kept[bits].mse == pytest.approx((3 / (2**bits - 1)) ** 2 / 12, rel=0.1)
        assert wide[bits].mse / kept[bits].mse == pytest.approx((5 / 3) ** 2, rel=0.1)
    powers = analysis.compare_bit_widths(x, (4,), symmetric=False, widen=False, powers_of_two=True)[4]
    assert powers.mse == pytest.approx(0.25**2 / 12, rel=0.1)

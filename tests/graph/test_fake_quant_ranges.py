"""Ranges that do not hold zero, powers of two, LSQ+, and grids of encoded weights: each against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import fake_quant, formats
from onnxq.fake_quant import AffineGrid, OffsetGrid
from onnxq.formats import Granularity

W = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
FAR = np.random.default_rng(1).uniform(2, 5, (4, 50)).astype(np.float32)
each_group = pytest.mark.parametrize(("axis", "block"), [(None, None), (0, None), (1, 16)], ids=str)


def ends(x: NDArray, axis: int | None, block: int | None) -> tuple[NDArray, NDArray]:
    groups, axes = Granularity(axis, block).groups(x, "edge")
    return groups.min(axes), groups.max(axes)


@each_group
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_a_range_that_is_not_widened(bits: int, axis: int | None, block: int | None) -> None:
    """s = (max − min)/(2^b − 1), z = round(−min/s), codes round(x/s) + z: all codes are used by [2, 5]."""
    grid = fake_quant.fit(FAR, bits, symmetric=False, axis=axis, block=block, widen=False)
    low, high = ends(FAR, axis, block)
    scale = ((high.astype(np.float64) - low) / (2**bits - 1)).astype(np.float32)
    np.testing.assert_array_equal(grid.scale, scale)
    np.testing.assert_array_equal(grid.zero_point, np.rint(-low.astype(np.float64) / scale))
    codes = fake_quant.codes(FAR, grid)
    assert (codes.min(), codes.max()) == (0, 2**bits - 1)
    error = np.abs(fake_quant.forward(FAR, grid) - FAR)
    assert (error <= grid.spread(FAR, grid.scale) * 1.01 + 5e-7).all()  # rounding z moves the range by half a step
    if bits <= 8:
        wide = fake_quant.fit(FAR, bits, symmetric=False, axis=axis, block=block)
        assert np.mean(error**2) < 0.6 * np.mean((fake_quant.forward(FAR, wide) - FAR) ** 2)


@pytest.mark.parametrize("number", [-3.5, 0.0, 1e-42, 7e30, 1000.25])
def test_a_range_of_one_number(number: float) -> None:
    x = np.full((3, 4), number, np.float32)
    grid = fake_quant.fit(x, 4, symmetric=False, widen=False)
    np.testing.assert_allclose(fake_quant.forward(x, grid), x, rtol=1e-6, atol=1e-37)


def test_a_range_far_from_zero() -> None:
    """A million and a bit: float32 has 16 numbers between two of its integers there, and each keeps its own code."""
    x = (1e6 + np.arange(16) / 16).astype(np.float32)
    grid = fake_quant.fit(x, 4, symmetric=False, widen=False)
    assert len(np.unique(fake_quant.codes(x, grid))) == 16
    np.testing.assert_allclose(fake_quant.forward(x, grid), x, atol=0.5 / 15 + 0.0625)


@each_group
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("widen", [True, False])
def test_powers_of_two_above_the_scale(symmetric: bool, widen: bool, axis: int | None, block: int | None) -> None:
    """2^⌈log2((max − min)/(2^b − 1))⌉."""
    options = {"symmetric": symmetric, "axis": axis, "block": block, "widen": widen}
    own = fake_quant.fit(W, 5, **options)
    grid = fake_quant.fit(W, 5, **options, powers_of_two=True)
    np.testing.assert_array_equal(grid.scale, 2.0 ** np.ceil(np.log2(own.scale.astype(np.float64))))
    error = np.abs(fake_quant.forward(W, grid) - W)
    assert (error <= grid.spread(W, grid.scale) * (0.501 if symmetric else 1.01)).all()
    exact = fake_quant.grid_over(-0.5 * 15, 0.5 * 15, 5, powers_of_two=True)
    assert exact.scale == 0.5  # a power of two stays what it is


@pytest.mark.parametrize("word", ["int2", "int3", "int4", "int8", "int16", "uint2", "uint4", "uint8", "uint16"])
@each_group
def test_a_grid_of_a_weight_has_the_codes_of_its_encoder(word: str, axis: int | None, block: int | None) -> None:
    q = formats.quantize(W, word, Granularity(axis, block))
    grid = fake_quant.grid_of(q)
    np.testing.assert_array_equal(fake_quant.codes(W, grid), q.codes)
    np.testing.assert_array_equal(fake_quant.forward(W, grid), q.dequantize())
    np.testing.assert_array_equal(fake_quant.from_codes(q.codes, grid), q.dequantize())
    far = np.array([[-1e3], [1e3]] * 3, np.float32) * np.ones((1, 40), np.float32)
    again = q.format.encode(far, q.granularity, q.scales, q.zero_points)
    np.testing.assert_array_equal(fake_quant.codes(far, grid), again.codes)  # the ends are the encoder's, too


@pytest.mark.parametrize("word", ["pow2_int4", "pow2_int8"])
def test_a_grid_of_powers_of_two(word: str) -> None:
    q = formats.quantize(W, word, Granularity(0))
    np.testing.assert_array_equal(fake_quant.codes(W, fake_quant.grid_of(q)), q.codes)


@pytest.mark.parametrize("word", ["nf4", "mxfp4", "float16", "uniform4", "q4_1"])
def test_levels_that_are_no_grid(word: str) -> None:
    with pytest.raises(ValueError, match=f"the levels of {word} are no multiples of a scale"):
        fake_quant.grid_of(formats.quantize(W, word))


@each_group
def test_lsq_plus_is_the_paper_s(axis: int | None, block: int | None) -> None:
    """Equations 1 to 5, transcribed; the start is that of section 3.2."""
    x, given = FAR - 3, np.random.default_rng(2).standard_normal(FAR.shape)
    low, high = ends(x, axis, block)
    grid = fake_quant.fit_offset(x, 4, axis=axis, block=block)
    np.testing.assert_array_equal(grid.scale, ((high.astype(np.float64) - low) / 15).astype(np.float32))
    np.testing.assert_array_equal(grid.offset, low)
    grid = OffsetGrid(grid.scale * np.float32(0.6), grid.offset + np.float32(0.3), 0, 15, axis, block)
    s, beta = grid.spread(x, grid.scale), grid.spread(x, grid.offset)
    v = (x - beta) / s
    np.testing.assert_array_equal(fake_quant.forward_offset(x, grid), np.clip(np.rint(v), 0, 15) * s + beta)
    of_x, of_scale, of_offset = fake_quant.backward_offset(given, x, grid)
    inside = (v >= 0) & (v <= 15)
    assert 0.3 < inside.mean() < 0.9
    np.testing.assert_array_equal(of_x, np.where(inside, given, 0))
    step = np.where(inside, np.rint(v) - v.astype(np.float64), np.where(v < 0, 0, 15))
    np.testing.assert_allclose(of_scale, grid.summed(step * given), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_offset, grid.summed(np.where(inside, 0, given)), rtol=1e-5, atol=1e-5)


@each_group
def test_the_gradient_of_a_range(axis: int | None, block: int | None) -> None:
    """Finite differences of the function in which the rounding of each number is a constant offset."""
    x, given = (FAR - 3).astype(np.float64), np.random.default_rng(2).standard_normal(FAR.shape)
    low, high = (end.astype(np.float64) for end in ends(x, axis, block))
    low, high = low * 0.8 + 0.2 * high, high * 0.8 + 0.2 * low
    grid = fake_quant.offset_grid_over(low, high, 4, axis=axis, block=block)

    def smoothed(low: NDArray, high: NDArray) -> NDArray:
        s, beta = (grid.spread(x, part) for part in ((high - low) / 15, low))
        s0, beta0 = (grid.spread(x, part.astype(np.float64)) for part in (grid.scale, grid.offset))
        v0, v = (x - beta0) / s0, (x - beta) / s
        inside = (v0 >= 0) & (v0 <= 15)
        code = np.where(inside, v + np.rint(v0) - v0, np.where(v0 < 0, 0, 15))
        return grid.summed((code * s + beta) * given)

    h = 1e-6
    of_x, of_low, of_high = fake_quant.backward_range(given, x, low, high, 4, axis=axis, block=block)
    np.testing.assert_allclose(
        of_low, (smoothed(low + h, high) - smoothed(low - h, high)) / 2 / h, rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(
        of_high, (smoothed(low, high + h) - smoothed(low, high - h)) / 2 / h, rtol=1e-3, atol=1e-3
    )
    np.testing.assert_array_equal(of_x, fake_quant.backward_offset(given, x, grid)[0])
    ends_only = fake_quant.backward_range(given, x, low, high, 4, axis=axis, block=block, rounding=False)
    np.testing.assert_allclose(ends_only[1], grid.summed(given * (x < grid.spread(x, low))), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ends_only[2], grid.summed(given * (x > grid.spread(x, high))), rtol=1e-5, atol=1e-5)


def test_learning_scale_and_offset_finds_good_ones() -> None:
    """Descent from the extremes of Swish with a few outliers ends well below the error of the start."""
    x = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    x = x / (1 + np.exp(-x))
    x[:4] = 12
    grid = fake_quant.fit_offset(x, 3)
    first = np.mean((fake_quant.forward_offset(x, grid) - x) ** 2)
    for _ in range(400):
        _, of_scale, of_offset = fake_quant.backward_offset(
            2 * (fake_quant.forward_offset(x, grid) - x) / x.size, x, grid
        )
        grid = OffsetGrid(grid.scale - np.float32(0.05) * of_scale, grid.offset - np.float32(0.05) * of_offset, 0, 7)
    assert np.mean((fake_quant.forward_offset(x, grid) - x) ** 2) < 0.5 * first


def test_impossible_offsets_and_ranges() -> None:
    one = np.ones((), np.float32)
    for scale, offset, words in ((0 * one, one, "not zero"), (one, np.float32(np.inf), "finite")):
        with pytest.raises(ValueError, match=words):
            OffsetGrid(np.asarray(scale), np.asarray(offset), 0, 15)
    with pytest.raises(ValueError, match="the lower one first"):
        fake_quant.offset_grid_over(1, 0)
    with pytest.raises(ValueError, match="wider than float32"):
        fake_quant.offset_grid_over(-1e300, 1e300)
    with pytest.raises(ValueError, match="needs a width"):
        fake_quant.backward_range(one, one, 1, 1)
    with pytest.raises(ValueError, match="gradients"):
        fake_quant.backward_offset(np.ones(3), np.ones(4), fake_quant.offset_grid_over(0, 1))


def test_a_negative_scale_is_one_of_blocks() -> None:
    """int4 puts the largest weight on code −8, whatever its sign: gradients are those of the mirrored grid."""
    x, given = W[0], W[1]
    grid = AffineGrid(np.asarray(-0.1, np.float32), np.asarray(0), -8, 7)
    mirror = AffineGrid(np.asarray(0.1, np.float32), np.asarray(0), -7, 8)
    np.testing.assert_array_equal(fake_quant.forward(x, grid), fake_quant.forward(x, mirror))
    of_x, of_scale = fake_quant.backward_lsq(given, x, grid)
    wanted_x, wanted = fake_quant.backward_lsq(given, x, mirror)
    np.testing.assert_array_equal(of_x, wanted_x)
    np.testing.assert_allclose(of_scale, -wanted, rtol=1e-6)

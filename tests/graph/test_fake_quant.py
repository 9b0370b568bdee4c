"""Fake quantization: the grid, and gradients against finite differences of the smoothed function."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import fake_quant
from onnxq.errors import BadData, BadRecipe
from onnxq.fake_quant import AffineGrid

GRIDS = [(bits, symmetric) for bits in (2, 3, 4, 8, 12) for symmetric in (True, False)]
each_grid = pytest.mark.parametrize(("bits", "symmetric"), GRIDS, ids=lambda x: str(x))
each_axis = pytest.mark.parametrize("axis", [None, 0, 1, -1], ids=lambda axis: f"axis={axis}")


def numbers(*shape: int, seed: int = 0, offset: float = 0.3) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(shape) + offset


def narrow(x: NDArray, bits: int, symmetric: bool, axis: int | None) -> AffineGrid:
    """A grid that clips about a third of the numbers, on both sides."""
    return fake_quant.fit(x * 0.4, bits, symmetric=symmetric, axis=axis)


@each_axis
@each_grid
def test_a_fitted_grid_covers_the_numbers(bits: int, symmetric: bool, axis: int | None) -> None:
    """No error beyond half a step, zero exact, and quantizing again changes nothing."""
    x = numbers(6, 5, 7).astype(np.float32)
    grid = fake_quant.fit(x, bits, symmetric=symmetric, axis=axis)
    y = fake_quant.forward(x, grid)
    # Where the zero point is rounded the range moves by up to half a step, and its end is half a step nearer.
    assert (np.abs(y - x) <= grid.spread(x, grid.scale) * (0.5 + 1e-3 + (0 if symmetric else 0.5))).all()
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(fake_quant.forward(y, grid), y)
    np.testing.assert_array_equal(fake_quant.forward(np.zeros_like(x), grid), 0)
    assert len(np.unique(y / grid.spread(x, grid.scale))) <= 2**bits * (1 if axis is None else 7)


@each_axis
@pytest.mark.parametrize("symmetric", [True, False])
def test_forward_is_what_onnx_computes(symmetric: bool, axis: int | None) -> None:
    """QuantizeLinear and DequantizeLinear of the standard's reference; symmetric codes are those of int8."""
    x = numbers(4, 4, 4, seed=1).astype(np.float32) * 3
    x[0, 0, 0] = 100  # beyond the range of the other channels
    grid = narrow(x, 8, symmetric, axis)
    if symmetric:
        x = np.maximum(x, -127 * grid.spread(x, grid.scale))  # int8 itself has a code more
    channel = f"axis = {0 if axis is None else axis % 3}"
    text = f"""g (float[4,4,4] x) => (float[4,4,4] y) {{
        q = QuantizeLinear <{channel}> (x, s, z)  y = DequantizeLinear <{channel}> (q, s, z) }}"""
    constants = {"s": grid.scale, "z": grid.zero_point.astype(np.int8 if symmetric else np.uint8)}
    (wanted,) = tiny.evaluate(tiny.model(text, constants, opset=21, ir_version=10), x=x)
    np.testing.assert_array_equal(fake_quant.forward(x, grid), wanted)


@each_axis
@each_grid
def test_the_gradient_is_that_of_the_smoothed_function(bits: int, symmetric: bool, axis: int | None) -> None:
    """Averaged over shifts by up to half a step, the staircase is a ramp: its slope is 1 inside the range, 0 outside.

    The mean of n evenly spread shifts of a staircase has an error of at most one stair in n.
    """
    x = numbers(4, 3, 5)
    grid = narrow(x, bits, symmetric, axis)
    step, n = grid.spread(x, grid.scale.astype(np.float64)), 400
    shifts = (np.arange(n) + 0.5) / n - 0.5

    def smoothed(x: NDArray) -> NDArray:
        return np.mean([fake_quant.forward(x + shift * step, grid) for shift in shifts], axis=0)

    h = 0.05
    slope = (smoothed(x + h * step) - smoothed(x - h * step)) / (2 * h * step)
    v = x / step + grid.spread(x, grid.zero_point)
    near_an_end = (np.abs(v - grid.qmin) < 2 * h) | (np.abs(v - grid.qmax) < 2 * h)
    given = numbers(4, 3, 5, seed=3)
    got = fake_quant.backward(given, x, grid)
    np.testing.assert_allclose(got[~near_an_end], (slope * given)[~near_an_end], atol=4 / n / h)
    mask = fake_quant.inside(x, grid)
    assert 0.2 < mask.mean() < 0.95
    np.testing.assert_array_equal(got, np.where(mask, given, 0))


@each_axis
@each_grid
def test_the_gradient_of_the_scale(bits: int, symmetric: bool, axis: int | None) -> None:
    """Finite differences of the function in which the rounding of each number is a constant offset."""
    x = numbers(4, 3, 5)
    grid = narrow(x, bits, symmetric, axis)
    scale, zero = grid.scale.astype(np.float64), grid.spread(x, grid.zero_point)
    v = x / grid.spread(x, scale)
    offset, given = np.rint(v) - v, numbers(4, 3, 5, seed=3)

    def smoothed(scale: NDArray) -> NDArray:
        s = grid.spread(x, scale)
        # The offset belongs to numbers inside the range; those outside stay at its end.
        v = x / s + zero
        ends = np.clip(v, grid.qmin, grid.qmax)
        return grid.summed((np.where(v == ends, v + offset, ends) - zero) * s * given)

    h = 1e-6 * scale
    of_x, got = fake_quant.backward_lsq(given, x, grid)
    np.testing.assert_allclose(got, (smoothed(scale + h) - smoothed(scale - h)) / (2 * h), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(of_x, fake_quant.backward(given, x, grid))
    assert got.shape == grid.scale.shape


def test_the_ends_of_the_range_belong_to_it() -> None:
    """The paper's masks: qmin ≤ x/s + z ≤ qmax passes."""
    grid = AffineGrid(np.asarray(0.5, np.float32), np.asarray(3), 0, 15)
    x = np.array([-1.5, 6.0, -1.5001, 6.0001], np.float32)
    np.testing.assert_array_equal(fake_quant.backward(np.ones(4, np.float32), x, grid), [1, 1, 0, 0])
    _, of_scale = fake_quant.backward_lsq(np.array([0, 0, 1, 0], np.float32), x, grid)
    assert of_scale == -3
    _, of_scale = fake_quant.backward_lsq(np.array([0, 1, 0, 1], np.float32), x, grid)
    assert of_scale == 12


def test_learning_the_scale_finds_a_good_one() -> None:
    """Descent along the gradient ends near the scale of least squared error, from a start far away."""
    x = numbers(4096, offset=0)
    grid = AffineGrid(fake_quant.initial_scale(x, 7) * np.float32(4), np.zeros((), np.int64), -7, 7)
    for _ in range(300):
        error = 2 * (fake_quant.forward(x, grid) - x) / x.size
        _, slope = fake_quant.backward_lsq(error, x, grid)
        grid = AffineGrid(grid.scale - np.float32(0.3) * slope, grid.zero_point, -7, 7)
    candidates = np.linspace(0.1, 1, 200).astype(np.float32)
    errors = [
        np.mean((fake_quant.forward(x, AffineGrid(s.reshape(()), grid.zero_point, -7, 7)) - x) ** 2) for s in candidates
    ]
    assert np.mean((fake_quant.forward(x, grid) - x) ** 2) < min(errors) * 1.05


def test_the_paper_s_start_and_factor() -> None:
    x = np.array([[1.0, -3.0], [0.0, 0.0]], np.float32)
    assert fake_quant.initial_scale(x, 4) == pytest.approx(2 * 1.0 / 2)
    np.testing.assert_allclose(fake_quant.initial_scale(x, 4, axis=0), [2.0, 1.0])  # zeros: any scale will do
    grid = fake_quant.fit(x, 4, axis=0)
    assert fake_quant.gradient_factor(x, grid) == pytest.approx(1 / np.sqrt(2 * 7))


@given(
    st.floats(-(2.0**99), 2.0**99, width=32),
    st.floats(-(2.0**99), 2.0**99, width=32),
    st.integers(2, 16),
    st.booleans(),
)
def test_grids_over_any_range(a: float, b: float, bits: int, symmetric: bool) -> None:
    """Zero is exact, the ends are within half a step, or a step where the code of zero was rounded."""
    low, high = min(a, b), max(a, b)
    grid = fake_quant.grid_over(low, high, bits, symmetric=symmetric)
    x = np.array([low, 0, high], np.float32)
    y = fake_quant.forward(x, grid)
    assert y[1] == 0
    assert np.abs(y.astype(np.float64) - x).max() <= float(grid.scale) * (1.01 if not symmetric else 0.51)


@pytest.mark.parametrize("method", ["minmax", "moving-average", "percentile"])
def test_observers_give_the_range_their_collector_found(method: str) -> None:
    batches = [numbers(8, 3, seed=seed).astype(np.float32) for seed in range(3)]
    whole, each = fake_quant.Observer(method), fake_quant.Observer(method, 4, symmetric=True, axis=1)
    alone = [fake_quant.Observer(method, 4, symmetric=True) for _ in range(3)]
    for batch in batches:
        whole.update(batch)
        each.update(batch)
        for channel, observer in enumerate(alone):
            observer.update(batch[:, channel])
    np.testing.assert_array_equal(each.grid().scale, [observer.grid().scale for observer in alone])
    if method == "minmax":
        joined = np.concatenate(batches)
        assert whole.grid().scale == fake_quant.fit(joined, 8, symmetric=False).scale
        assert whole.grid().zero_point == fake_quant.fit(joined, 8, symmetric=False).zero_point


def test_observers_say_what_is_wrong() -> None:
    observer = fake_quant.Observer(axis=0)
    with pytest.raises(BadData, match="has not seen a batch yet"):
        observer.grid()
    observer.update(np.full((2, 3), np.nan, np.float32))
    np.testing.assert_array_equal(observer.grid().scale, [1, 1])
    with pytest.raises(ValueError, match="3 channels after batches of 2"):
        observer.update(np.zeros((3, 3)))
    with pytest.raises(BadRecipe, match="unknown calibration method 'best'"):
        fake_quant.Observer("best")


@pytest.mark.parametrize(
    ("scale", "zero", "codes", "words"),
    [
        (0.0, 0, (-7, 7), "finite and above zero"),
        (np.nan, 0, (-7, 7), "finite and above zero"),
        ([1.0, 2.0], [0, 0], (-7, 7), "for axis None"),
        (1.0, 0, (7, 7), "at least 2 are needed"),
    ],
)
def test_impossible_grids(scale: object, zero: object, codes: tuple[int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AffineGrid(np.asarray(scale, np.float32), np.asarray(zero), *codes)


@pytest.mark.parametrize("bits", [1, 17])
def test_bits_have_limits(bits: int) -> None:
    with pytest.raises(ValueError, match=f"{bits} bits"):
        fake_quant.grid_over(-1, 1, bits)

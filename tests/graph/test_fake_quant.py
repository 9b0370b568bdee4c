"""Fake quantization: the grid, and gradients against finite differences of the smoothed function."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import fake_quant, formats
from onnxq.errors import BadData, BadRecipe
from onnxq.fake_quant import AffineGrid
from onnxq.formats import Granularity

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
        (0.0, 0, (-7, 7), "finite and not zero"),
        (np.nan, 0, (-7, 7), "finite and not zero"),
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


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_an_observer_s_range_is_that_of_its_own_grid(bits: int, symmetric: bool) -> None:
    """The range of least error for 8 bits is far too wide for 2: the observer's error is near the best there is."""
    x = numbers(20_000).astype(np.float32)
    observer = fake_quant.Observer("mse", bits, symmetric=symmetric)
    observer.update(x)
    got = np.mean((fake_quant.forward(x, observer.grid()) - x) ** 2)
    tried = [
        np.mean(
            (fake_quant.forward(x, fake_quant.grid_over(x.min() * a, x.max() * b, bits, symmetric=symmetric)) - x) ** 2
        )
        for a in np.linspace(0.1, 1, 30)
        for b in np.linspace(0.1, 1, 30)
    ]
    assert got < 1.1 * min(tried)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_and_their_numbers(symmetric: bool, axis: int | None) -> None:
    x = numbers(4, 6).astype(np.float32)
    grid = narrow(x, 4, symmetric, axis)
    q = fake_quant.codes(x, grid)
    assert q.min() == grid.qmin and q.max() == grid.qmax
    np.testing.assert_array_equal(fake_quant.from_codes(q, grid), fake_quant.forward(x, grid))
    with pytest.raises(ValueError, match=r"are beyond"):
        fake_quant.from_codes(q + 100, grid)
    with pytest.raises(ValueError, match=r"holds nan at \[0\]"):
        fake_quant.codes([np.nan, 1.0], fake_quant.grid_over(0, 1))


@pytest.mark.parametrize("word", ["uint4", "uint8", "uint2"])
def test_a_grid_in_blocks_equals_the_format_s_own_encoder(word: str) -> None:
    x = numbers(5, 70).astype(np.float32)
    q = formats.quantize(x, word, Granularity(1, 32))
    assert q.scales is not None and q.zero_points is not None
    grid = AffineGrid(q.scales, q.zero_points.astype(np.int64), 0, 2**q.format.bits - 1, axis=-1, block=32)
    np.testing.assert_array_equal(fake_quant.codes(x, grid), q.codes)
    np.testing.assert_array_equal(fake_quant.forward(x, grid), q.dequantize())
    own = fake_quant.fit(x, q.format.bits, symmetric=False, axis=1, block=32)
    np.testing.assert_array_equal(own.scale, q.scales)
    np.testing.assert_array_equal(own.zero_point, q.zero_points)


def test_the_gradient_of_block_scales_is_that_of_each_block_alone() -> None:
    x, given = numbers(3, 10), numbers(3, 10, seed=3)
    grid = fake_quant.fit(x * 0.4, 4, axis=1, block=4)
    of_x, of_scale = fake_quant.backward_lsq(given, x, grid)
    assert of_scale.shape == grid.scale.shape == (3, 3)
    for row in range(3):
        for block in range(3):
            part = np.s_[row, 4 * block : 4 * block + 4]
            alone = AffineGrid(grid.scale[row, block], grid.zero_point[row, block], grid.qmin, grid.qmax)
            wanted_x, wanted = fake_quant.backward_lsq(given[part], x[part], alone)
            np.testing.assert_array_equal(of_x[part], wanted_x)
            np.testing.assert_allclose(of_scale[row, block], wanted, rtol=1e-6)


def test_an_observer_tells_what_it_has_seen() -> None:
    observer = fake_quant.Observer("minmax", 4, axis=1)
    assert (observer.batches, observer.has_data, observer.low.size) == (0, False, 0)
    observer.update(np.full((2, 3), np.nan))
    assert (observer.batches, observer.has_data) == (1, False)
    np.testing.assert_array_equal(observer.low, np.inf)
    batches = [numbers(8, 3, seed=seed) for seed in range(3)]
    for batch in batches:
        observer.update(batch)
    joined = np.concatenate(batches)
    np.testing.assert_array_equal(observer.low, joined.min(axis=0))
    np.testing.assert_array_equal(observer.high, joined.max(axis=0))
    assert repr(observer) == "Observer(minmax, 4 bits, 4 batches)"
    observer.reset()
    assert (observer.batches, observer.has_data) == (0, False)
    with pytest.raises(BadData, match="has not seen a batch yet"):
        observer.grid()
    observer.update(numbers(5, 7))  # another number of channels
    assert observer.high.shape == (7,)
    whole = fake_quant.Observer()
    assert (float(whole.low), float(whole.high)) == (np.inf, -np.inf)


@pytest.mark.parametrize("momentum", [0.01, 0.1, 0.9, 1.0])
def test_momentum_is_what_a_new_batch_weighs(momentum: float) -> None:
    """A transcription: m · new + (1 − m) · old, the first batch fully."""
    observer = fake_quant.Observer("moving-average", 8, momentum=momentum)
    low = high = None
    for seed in range(5):
        x = numbers(50, seed=seed)
        observer.update(x)
        low = x.min() if low is None else momentum * x.min() + (1 - momentum) * low
        high = x.max() if high is None else momentum * x.max() + (1 - momentum) * high
    assert low is not None and high is not None
    assert float(observer.grid().scale) == pytest.approx((high - low) / 255, rel=1e-6)


@pytest.mark.parametrize("momentum", [0, -1, 1.1, float("nan")])
def test_momentum_has_limits(momentum: float) -> None:
    with pytest.raises(ValueError, match="a new batch cannot weigh"):
        fake_quant.Observer("moving-average", momentum=momentum)


@pytest.mark.parametrize("shares", [(99.0, 99.0), (90.0, 99.9), (100.0, 95.0), (99.99, 99.99)])
def test_percentiles_are_numpy_s(shares: tuple[float, float]) -> None:
    """To the width of a bin; the low end's share is counted from above."""
    x = numbers(100_000)
    word = f"percentile:{shares[0]}" if shares[0] == shares[1] else f"percentile:{shares[0]},{shares[1]}"
    observer = fake_quant.Observer(word)
    observer.update(x)
    low, high = np.percentile(x, [100 - shares[0], shares[1]])
    width = (x.max() - x.min()) / 2048
    assert float(observer.grid().scale) * 255 == pytest.approx(high - low, abs=2 * width)
    zero = float(observer.grid().zero_point)
    assert zero == pytest.approx(-low / float(observer.grid().scale), abs=1)


@pytest.mark.parametrize("word", ["percentile:", "percentile:50", "percentile:101", "percentile:99,99,99", "minmax:3"])
def test_methods_take_their_own_parameters_only(word: str) -> None:
    with pytest.raises(BadRecipe, match=r"percentile|has no parameters"):
        fake_quant.Observer(word)

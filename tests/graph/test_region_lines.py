"""Tables of a code that are lines: a few numbers for each channel make exactly the same codes, or there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq.passes.regions.tables import line_of

SCALES = st.floats(-3, 0).map(lambda power: np.float32(10**power))
ZEROS = st.integers(0, 255)


def table_of(factor: NDArray, start: NDArray, read: tuple[np.float32, int], made: tuple[np.float32, int]) -> NDArray:
    """DequantizeLinear, a line for each channel and QuantizeLinear, of every code."""
    x = (np.arange(256, dtype=np.float32) - np.float32(read[1])) * read[0]
    y = x * factor[:, None].astype(np.float32) + start[:, None].astype(np.float32)
    return np.clip(np.rint(y / made[0]) + made[1], 0, 255).astype(np.uint8)


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(-1.5, 1.5), SCALES, SCALES, ZEROS, ZEROS)
def test_lines_are_found(
    seed: int, channels: int, power: float, read: np.float32, made: np.float32, x_zero: int, zero: int
) -> None:
    rng = np.random.default_rng(seed)
    factor, start = rng.normal(size=channels) * 10**power, rng.normal(size=channels)
    factor[rng.random(channels) < 0.1] = 0  # a channel that says nothing
    tables = table_of(factor, start, (read, x_zero), (made, zero))
    line = line_of(tables, zero)
    if line is not None:  # rounding of the definition may leave a line by more than half a step
        np.testing.assert_array_equal(line.codes(zero), tables)
        assert line.factor.dtype == line.start.dtype == np.float32
        assert line.factor.shape == line.start.shape == (channels,)


def test_hardly_any_line_is_missed() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(50):
        factor, start = rng.normal(size=64), rng.normal(size=64)
        read, made = (np.float32(10 ** rng.uniform(-3, 0)) for _ in range(2))
        line = line_of(table_of(factor, start, (read, int(rng.integers(256))), (made, 128)), 128)
        found += line is not None and line.knee is None
    assert found >= 49


@pytest.mark.parametrize("steps", [0.5, 0.25, 1.0, 2.0])
def test_codes_on_halves_are_rounded_to_the_even_one(steps: float) -> None:
    """As scales that are powers of two make them: only one line has all of them."""
    factor, start = np.array([steps, -steps, 2 * steps, 0]), np.array([0.5, 1.5, 0.25, 0.5])
    tables = table_of(factor, start, (np.float32(1), 100), (np.float32(1), 120))
    line = line_of(tables, 120)
    assert line is not None
    np.testing.assert_array_equal(line.codes(120), tables)


def test_bounds_are_those_of_the_table() -> None:
    tables = np.clip(table_of(np.ones(3), np.arange(3.0), (np.float32(1), 128), (np.float32(1), 30)), 30, 77)
    line = line_of(tables, 30)
    assert line is not None and (line.low, line.high) == (30, 77)
    np.testing.assert_array_equal(line.codes(30), tables)


@pytest.mark.parametrize("shifted", [False, True])
def test_lines_may_have_a_knee_of_each_channel(shifted: bool) -> None:
    """As a PRelu makes it, with something in front that moves the knee, or nothing."""
    rng = np.random.default_rng(5)
    x = (np.arange(256, dtype=np.float32) - 90) * np.float32(0.037)
    y = x + (rng.normal(size=(50, 1)).astype(np.float32) if shifted else np.zeros((50, 1), np.float32))
    y = np.where(y < 0, y * rng.uniform(-0.3, 1.4, (50, 1)).astype(np.float32), y)
    tables = np.clip(np.rint(y / np.float32(0.02)) + 70, 0, 255).astype(np.uint8)
    line = line_of(tables, 70)
    assert line is not None and line.knee is not None and line.factor.shape == line.start.shape == (2, 50)
    np.testing.assert_array_equal(line.codes(70), tables)
    assert len(np.unique(line.knee)) == 1 or shifted


def test_what_is_bent_twice_is_no_line() -> None:
    codes = np.arange(256)
    curve = np.rint(255 / (1 + np.exp((128 - codes) / 30.0)))
    assert line_of(np.stack([codes, curve]).astype(np.uint8), 64) is None

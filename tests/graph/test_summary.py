"""The summary that all collectors share: every number in it against plain arithmetic, merges, and the way to JSON."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from drawn import drawn
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq.summaries.histogram import Histogram
from onnxq.summaries.summary import BLOCK, LANES, Summary, from_dict, sums

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45]
)
BATCHES = st.lists(st.lists(NUMBERS, max_size=20).map(lambda x: np.array(x, np.float32)), max_size=6)
few = drawn(60)


def seen(*batches: NDArray, axis: int | None = None) -> Summary:
    made = Summary(axis=axis)
    for batch in batches:
        made.update(batch)
    return made


def exact(summary: Summary) -> dict[str, object]:
    """What does not depend on the order or the split of what was seen."""
    table = summary.to_dict()
    for name in ("total", "squares", "batches", "average_low", "average_high"):
        del table[name]
    return table


@few
@given(batches=BATCHES)
def test_every_kind_of_number_is_counted(batches: list[NDArray]) -> None:
    found = seen(*batches)
    numbers = [float(x) for batch in batches for x in batch]
    finite = [x for x in numbers if math.isfinite(x)]
    assert (found.count, found.finite) == (len(numbers), len(finite))
    assert found.zeros == finite.count(0.0)
    assert found.nans == sum(map(math.isnan, numbers))
    assert found.infinities == sum(map(math.isinf, numbers))
    assert (found.low, found.high) == (min(finite, default=math.inf), max(finite, default=-math.inf))
    scale = math.fsum(map(abs, finite))
    assert found.total == pytest.approx(math.fsum(finite), rel=1e-12, abs=1e-12 * scale)
    assert found.squares == pytest.approx(math.fsum(x * x for x in finite), rel=1e-12)


@few
@given(a=BATCHES, b=BATCHES)
def test_merge_is_having_seen_both(a: list[NDArray], b: list[NDArray]) -> None:
    merged, both = seen(*a), seen(*a, *b)
    merged.merge(seen(*b))
    assert exact(merged) == exact(both)
    scale = math.fsum(abs(float(x)) for batch in a + b for x in batch if np.isfinite(x))
    assert merged.total == pytest.approx(both.total, rel=1e-12, abs=1e-12 * scale)
    assert merged.squares == pytest.approx(both.squares, rel=1e-12)
    assert merged.batches == both.batches


@few
@given(a=BATCHES, b=BATCHES)
def test_merging_twice_gives_the_same_bits(a: list[NDArray], b: list[NDArray]) -> None:
    one, other = seen(*a), seen(*a)
    one.merge(seen(*b))
    other.merge(seen(*b))
    assert one.to_dict() == other.to_dict()


@few
@given(batches=BATCHES)
def test_the_split_into_batches_does_not_matter(batches: list[NDArray]) -> None:
    whole = np.concatenate([np.zeros(0, np.float32), *batches])
    one_by_one = seen(*whole.reshape(-1, 1)) if whole.size else Summary()
    assert exact(seen(*batches, whole[:0])) == exact(seen(whole)) | {"least_rank": 1, "most_rank": 1}
    one_by_one.least_rank = one_by_one.most_rank = 1
    assert exact(one_by_one) == exact(seen(whole)) | {"least_rank": 1, "most_rank": 1}


@few
@given(batches=BATCHES)
def test_json_keeps_every_bit(batches: list[NDArray]) -> None:
    found = seen(*batches, axis=0)
    assert from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()


@pytest.mark.parametrize("wrong", [{"count": 7}, {"counts": "AAAA"}, {"counts": "?"}, {"first": "x"}], ids=str)
def test_damaged_json_is_refused(wrong: dict[str, object]) -> None:
    table = seen(np.array([1, 2, 3], np.float32)).to_dict()
    where = table if "count" in wrong else table["histogram"]
    where.update(wrong)
    with pytest.raises(ValueError):
        from_dict(table)


@pytest.mark.parametrize("size", [0, 1, LANES - 1, LANES + 1, BLOCK - 1, BLOCK + LANES + 3, 3 * BLOCK])
def test_sums_are_made_in_the_stated_order(size: int) -> None:
    x = (np.random.default_rng(size).standard_normal(size) * 1e3).astype(np.float32)
    total = squares = 0.0
    for start in range(0, size, BLOCK):
        lanes, of_squares = [0.0] * LANES, [0.0] * LANES
        for i, value in enumerate(x[start : start + BLOCK].tolist()):
            lanes[i % LANES] += value
            of_squares[i % LANES] += value * value
        block = block_of_squares = 0.0
        for lane, square in zip(lanes, of_squares, strict=True):
            block, block_of_squares = block + lane, block_of_squares + square
        total, squares = total + block, squares + block_of_squares
    assert sums(x) == (total, squares)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=str)
def test_float_types_agree(dtype: type) -> None:
    x = np.random.default_rng(0).integers(-60, 60, 500).astype(np.float32) / 4
    assert seen(x.astype(dtype)).to_dict() == seen(x).to_dict()


def test_ranks_are_those_of_the_arrays() -> None:
    found = seen(np.zeros((2, 3)), np.zeros((1, 2, 3, 4)), np.zeros((0, 3)))
    assert (found.least_rank, found.most_rank) == (2, 4)
    assert (Summary().least_rank, Summary().most_rank) == (-1, -1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_channels_have_their_own_extremes(axis: int) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 3, 4, 3)).astype(np.float32)
    found = seen(a, b, axis=axis)
    rest = tuple(i for i in range(3) if i != axis % 3)
    np.testing.assert_array_equal(found.channel_low, np.minimum(a.min(rest), b.min(rest)))
    np.testing.assert_array_equal(found.channel_high, np.maximum(a.max(rest), b.max(rest)))
    merged = seen(a, axis=axis)
    merged.merge(seen(b, axis=axis))
    assert exact(merged) == exact(found)


def test_channels_leave_nan_and_infinities_out() -> None:
    found = seen(np.array([[1, np.nan, 3], [np.nan, -np.inf, np.inf]], np.float32), axis=0)
    assert found.channel_low.tolist() == [1, np.inf]
    assert found.channel_high.tolist() == [3, -np.inf]


def test_arrays_without_the_channels_are_counted() -> None:
    found = seen(np.ones((2, 3)), np.ones(4), np.ones((2, 5)), axis=1)
    assert (found.unlike, found.count, found.channel_low.size) == (2, 20, 3)


@few
@given(batches=BATCHES)
def test_the_histogram_of_magnitudes_is_that_of_the_absolute_numbers(batches: list[NDArray]) -> None:
    h, absolute = Histogram(), Histogram()
    finite = [x[np.isfinite(x)] for x in batches]
    for x in finite:
        h.update(x)
    start, counts = h.magnitudes()
    for x in finite:
        absolute.update(np.abs(x))
    if not counts.size:
        assert not absolute.counts.size
        return
    shift = h.exponent - absolute.exponent
    coarse: dict[int, int] = {}
    for i, count in enumerate(absolute.counts.tolist()):
        j = (absolute.first + i) >> shift if shift >= 0 else -1
        coarse[j] = coarse.get(j, 0) + count
    assert shift >= 0
    assert {start + i: n for i, n in enumerate(counts.tolist()) if n} == {j: n for j, n in coarse.items() if n}

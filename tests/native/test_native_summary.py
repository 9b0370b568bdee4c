"""The compiled summary against the one in numpy: equal in every bit, whatever numbers, types, shapes and threads."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq.summaries import native
from onnxq.summaries.native import NativeSummary
from onnxq.summaries.summary import BLOCK, LANES, Summary

pytestmark = pytest.mark.skipif(not native.available(), reason="the compiled library is not there")
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
BITS = {np.float32: np.uint32, np.float64: np.uint64, np.float16: np.uint16, ml_dtypes.bfloat16: np.uint16}
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)


def both(*batches: NDArray, axis: int | None = None) -> tuple[Summary, NativeSummary]:
    reference, made = Summary(axis=axis), NativeSummary(Summary(axis=axis))
    for batch in batches:
        with np.errstate(invalid="ignore"):
            reference.update(batch)
        made.update(batch)
    return reference, made


def same(*batches: NDArray, axis: int | None = None) -> Summary:
    reference, made = both(*batches, axis=axis)
    assert made.read().to_dict() == reference.to_dict()
    return reference


@every_type
@settings(max_examples=150, deadline=None, derandomize=True)
@given(batches=st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=40), max_size=4))
def test_any_bits_at_all(dtype: type, batches: list[list[int]]) -> None:
    kind = BITS[dtype]
    same(*(np.array([b & np.iinfo(kind).max for b in batch], kind).view(dtype) for batch in batches))


@every_type
@pytest.mark.parametrize("size", [0, 1, LANES - 1, LANES, LANES + 1, 2049, BLOCK - 1, BLOCK + 1, 9 * BLOCK + 5])
def test_sizes_around_the_limits_of_blocks(dtype: type, size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size)
    same(np.maximum(x, 0).astype(dtype), x.astype(dtype) * dtype(3), x[: size // 2].astype(dtype))


@pytest.mark.parametrize("scale", [1e-45, 1e-42, 1e-38, 1e-20, 1.0, 1e20, 3e37])
@pytest.mark.parametrize("offset", [0.0, 1.0, -1e6])
def test_magnitudes(scale: float, offset: float) -> None:
    x = (np.random.default_rng(1).standard_normal(3 * BLOCK) + offset) * scale
    with np.errstate(over="ignore"):
        same(x.astype(np.float32), (x[:5000] * 7).astype(np.float32))
    same(x, x * 1e200)


@pytest.mark.parametrize("dirt", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 5, LANES * 100 + 3, BLOCK, 5 * BLOCK - 1])
def test_one_number_that_is_not_finite(dirt: float, where: int) -> None:
    x = np.random.default_rng(2).standard_normal(5 * BLOCK).astype(np.float32)
    x[where] = dirt
    seen = same(x, x)
    assert seen.nans + seen.infinities == 2


def test_borders_of_bins_fall_to_the_same_side() -> None:
    k = np.arange(-5000, 5001, dtype=np.float32)
    for factor in (1.0, 0.5, 2.0**-30, 2.0**40):
        same(k * np.float32(factor), np.nextafter(k * np.float32(factor), np.float32(0)))


@pytest.mark.parametrize("axis", [0, 1, -1, 3])
def test_channels(axis: int) -> None:
    rng = np.random.default_rng(3)
    batches = [rng.standard_normal(shape).astype(np.float32) for shape in [(2, 3, 4), (5, 3, 4), (2, 3, 9), (4,)]]
    batches[1][0, 0] = np.nan
    same(*batches, np.zeros((0, 3, 4), np.float32), axis=axis)


@every_type
def test_going_on_from_what_was_seen(dtype: type) -> None:
    x = (np.random.default_rng(4).standard_normal((6, 3, 1000)) * 4).astype(dtype)
    reference, first = both(*x[:4], axis=0)
    second = NativeSummary(first.read())
    for batch in x[4:] * dtype(8):
        reference.update(batch)
        second.update(batch)
    assert second.read().to_dict() == reference.to_dict()


def test_nothing_but_extremes_is_kept_where_no_histogram_was_asked_for() -> None:
    x = np.random.default_rng(5).standard_normal(100_000).astype(np.float32)
    reference, made = Summary(histogram=None), NativeSummary(Summary(histogram=None))
    reference.update(x)
    made.update(x)
    assert made.read().to_dict() == reference.to_dict()


def test_threads_that_share_a_summary_lose_nothing() -> None:
    x = (np.random.default_rng(6).standard_normal((8, 20, 20_000)) * 2.0 ** np.arange(20)[:, None]).astype(np.float32)
    made = NativeSummary(Summary())

    def feed(part: NDArray) -> None:
        for batch in part:
            made.update(batch)

    threads = [threading.Thread(target=feed, args=(part,)) for part in x]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got, wanted = made.read(), Summary()
    wanted.update(x)
    assert got.histogram is not None and wanted.histogram is not None
    assert (got.count, got.low, got.high, got.zeros) == (wanted.count, wanted.low, wanted.high, wanted.zeros)
    np.testing.assert_array_equal(got.histogram.counts, wanted.histogram.counts)
    assert (got.histogram.first, got.histogram.exponent) == (wanted.histogram.first, wanted.histogram.exponent)


def test_numbers_are_not_given_twice() -> None:
    kept = NativeSummary(Summary())
    freed = NativeSummary(Summary()).number
    assert len({kept.number, freed, NativeSummary(Summary()).number}) == 3

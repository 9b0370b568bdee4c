"""Laws that every collector in the folder keeps, and what each of them says of known numbers."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from drawn import drawn
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import collectors
from onnxq.collectors.percentile import PERCENTILE
from onnxq.errors import BadRecipe
from onnxq.summaries.histogram import BINS, Histogram
from onnxq.summaries.ranges import Range
from onnxq.summaries.summary import MOMENTUM

every_collector = pytest.mark.parametrize("name", collectors.names())
#: What these say depends on the numbers alone. A moving average depends on the order and size of batches by design.
ORDERLESS = [name for name in collectors.names() if name != "moving-average"]
orderless = pytest.mark.parametrize("name", ORDERLESS)

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-2, 2, width=32)
BATCHES = st.lists(st.lists(NUMBERS, max_size=20).map(lambda x: np.array(x, np.float32)), max_size=6)
few = drawn(40)


def seen(name: str, *batches: NDArray) -> collectors.Collector:
    collector = collectors.get(name)()
    for batch in batches:
        collector.update(batch)
    return collector


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def histogram(*batches: NDArray) -> Histogram:
    made = Histogram()
    for batch in batches:
        made.update(batch)
    return made


def test_the_folder_is_the_list() -> None:
    assert {"entropy", "minmax", "moving-average", "mse", "percentile"} <= set(collectors.names())


def test_an_unknown_word_lists_the_known_ones() -> None:
    with pytest.raises(
        BadRecipe, match="unknown calibration method 'entropi'; choose one of entropy, minmax, moving-average"
    ):
        collectors.get("entropi")


@orderless
@few
@given(a=BATCHES, b=BATCHES)
def test_merge_is_having_seen_both(name: str, a: list[NDArray], b: list[NDArray]) -> None:
    merged = seen(name, *a)
    merged.merge(seen(name, *b))
    assert merged.range() == seen(name, *a, *b).range() == seen(name, *b, *a).range()


@orderless
@few
@given(batches=BATCHES)
def test_the_split_into_batches_does_not_matter(name: str, batches: list[NDArray]) -> None:
    whole = np.concatenate([np.zeros(0, np.float32), *batches])
    assert seen(name, *batches).range() == seen(name, whole).range() == seen(name, *whole).range()


@every_collector
@few
@given(batches=BATCHES)
def test_the_range_lies_within_what_was_seen(name: str, batches: list[NDArray]) -> None:
    found = seen(name, *batches).range()
    whole = np.concatenate([np.zeros(0, np.float64), *batches])
    if not whole.size:
        assert found is None
        return
    assert found is not None
    slack = 1e-12 * float(np.abs(whole).max())  # of the average of float64 numbers
    assert whole.min() - slack <= found.low <= found.high <= whole.max() + slack


@every_collector
@pytest.mark.parametrize("shape", [(64,), (4, 16), (2, 2, 4, 4), (1, 64, 1)], ids=str)
def test_the_shape_does_not_matter(name: str, shape: tuple[int, ...]) -> None:
    x = normal(64)
    assert seen(name, x.reshape(shape)).range() == seen(name, x).range()


@every_collector
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_types_agree(name: str, dtype: type) -> None:
    x = normal(256).astype(np.float16)
    assert seen(name, x.astype(dtype)).range() == seen(name, x.astype(np.float64)).range()


@every_collector
def test_nan_and_infinities_are_ignored(name: str) -> None:
    x = normal(100)
    dirty = np.concatenate([x[:50], [np.nan, np.inf], x[50:], [-np.inf]]).astype(np.float32)
    assert seen(name, dirty).range() == seen(name, x).range()


@every_collector
def test_nothing_finite_is_no_range(name: str) -> None:
    nothing = seen(name, np.zeros(0, np.float32), np.zeros((3, 0), np.float32), np.full(4, np.nan, np.float32))
    assert nothing.range() is None
    nothing.merge(seen(name))
    assert nothing.range() is None


@every_collector
def test_merging_nothing_changes_nothing(name: str) -> None:
    x = normal(100)
    collector, empty = seen(name, x), seen(name)
    collector.merge(empty)
    empty.merge(collector)
    assert collector.range() == empty.range() == seen(name, x).range()


@every_collector
@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -3.75, 1e-45, 1e-30, 3e38, -3e38])
def test_a_constant_is_its_own_range(name: str, value: float) -> None:
    x = np.full((3, 5), value, np.float32)
    assert seen(name, x, x).range() == Range(float(x[0, 0]), float(x[0, 0]))


@every_collector
def test_the_size_is_constant(name: str) -> None:
    few_numbers = seen(name, normal(2 * BINS))
    many = seen(name, *(normal(1000, seed=i) * 10.0 ** (i - 8) for i in range(38)))
    assert len(pickle.dumps(many)) < len(pickle.dumps(few_numbers)) + 8 * BINS


def test_minmax_is_numpy() -> None:
    x = normal(1000)
    assert seen("minmax", *x.reshape(10, 100)).range() == Range(float(x.min()), float(x.max()))


def test_moving_average_follows_its_definition() -> None:
    batches = [normal(50, seed=i) * (i + 1) for i in range(8)]
    low, high = float(batches[0].min()), float(batches[0].max())
    for x in batches[1:]:
        low = (1 - MOMENTUM) * low + MOMENTUM * float(x.min())
        high = (1 - MOMENTUM) * high + MOMENTUM * float(x.max())
    found = seen("moving-average", *batches).range()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize("constant", ["low", "high"])
def test_moving_average_treats_low_and_high_apart(constant: str) -> None:
    """An end that never moves stays where it is, whatever the other one does."""
    ends = [np.array([-1, 10.0**i] if constant == "low" else [-(10.0**i), 1], np.float32) for i in range(6)]
    found = seen("moving-average", *ends).range()
    assert found is not None
    assert (found.low if constant == "low" else found.high) == (-1 if constant == "low" else 1)
    assert 1 < (found.high if constant == "low" else -found.low) < 1e5


def test_moving_average_merges_by_the_number_of_batches() -> None:
    one, three = seen("moving-average", np.array([0.0, 4.0])), seen("moving-average", *[np.array([-8.0, 8.0])] * 3)
    one.merge(three)
    assert one.range() == Range(-6.0, 7.0)


@pytest.mark.parametrize("case", ["normal", "exponential", "two-peaks", "integers"])
def test_percentile_is_numpys_within_one_bin(case: str) -> None:
    rng = np.random.default_rng(3)
    x = {
        "normal": rng.standard_normal(350_000),
        "exponential": rng.exponential(size=350_000),
        "two-peaks": np.r_[rng.normal(-5, 0.1, 175_000), rng.normal(90, 1, 175_000)],
        "integers": rng.integers(0, 6, 350_000),
    }[case].astype(np.float32)
    found = seen("percentile", *np.split(x, 8)).range()
    assert found is not None
    width = 2.0 ** histogram(x).exponent
    for got, end in ((found.high, x), (-found.low, -x)):
        assert abs(got - np.percentile(end, PERCENTILE, method="inverted_cdf")) <= width


def test_percentile_ignores_a_few_outliers() -> None:
    x = normal(1_000_000)
    x[:3] = [50, 60, -40]
    found = seen("percentile", x).range()
    assert found is not None
    assert -6 < found.low < -4 and 4 < found.high < 6


def test_percentile_of_few_numbers_clips_nothing() -> None:
    x = normal(1000)
    assert seen("percentile", x).range() == Range(float(x.min()), float(x.max()))


@few
@given(batches=BATCHES)
def test_histogram_counts_every_number(batches: list[NDArray]) -> None:
    h = histogram(*batches)
    assert h.total == sum(x.size for x in batches)
    assert len(h.counts) <= BINS
    assert (h.counts >= 0).all()


@few
@given(batches=BATCHES)
def test_histogram_bins_hold_their_numbers(batches: list[NDArray]) -> None:
    """Bin i counts the numbers of [i · 2^e, (i + 1) · 2^e) and bin -1 - i their negatives, in exact arithmetic."""
    h = histogram(*batches)
    numbers = [float(value) for x in batches for value in x]
    index = [math.floor(math.ldexp(abs(x), -h.exponent)) for x in numbers]
    index = [(~i if x < 0 else i) - h.first for i, x in zip(index, numbers, strict=True)]
    wanted = np.bincount(np.array(index, np.int64), minlength=len(h.counts)) if index else h.counts
    np.testing.assert_array_equal(h.counts, wanted)


@few
@given(batches=BATCHES)
def test_histogram_bins_are_never_finer_once_grown(batches: list[NDArray]) -> None:
    h, widest = Histogram(), -math.inf
    for x in batches:
        if not x.size:
            continue
        h.update(x)
        assert h.exponent >= widest
        widest = h.exponent


@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-3, 1.0, 1e10, 3e38])
def test_histogram_uses_more_than_half_its_bins(magnitude: float) -> None:
    x = np.array([0, magnitude], np.float32)
    h = histogram(x)
    assert BINS // 2 < len(h.counts) <= BINS
    assert (h.low, h.high) == (0, float(x[1]))


@pytest.mark.parametrize("width", [2.0**-39, 2.0**-20, 0.5])
def test_histogram_of_a_narrow_range_far_from_zero(width: float) -> None:
    h = histogram(np.array([1, 1 + width]))
    assert BINS // 2 < len(h.counts) <= BINS


def test_histogram_of_zero_and_then_tiny_numbers() -> None:
    h = histogram(np.zeros(3, np.float32), np.array([1e-45, 1e-20], np.float32), np.array([-1e-25], np.float32))
    assert h.total == 6
    assert len(h.counts) > BINS // 2


def test_histogram_grows_by_adding_neighbours() -> None:
    x = normal(10_000)
    fine = histogram(x)
    coarse = histogram(x, np.array([40.0], np.float32))
    factor = 1 << (coarse.exponent - fine.exponent)
    assert factor > 1
    summed = np.zeros(len(coarse.counts), np.int64)
    np.add.at(summed, (np.arange(len(fine.counts)) + fine.first) // factor - coarse.first, fine.counts)
    summed[-1] += 1
    np.testing.assert_array_equal(coarse.counts, summed)


def test_a_new_batch_weighs_as_the_word_says() -> None:
    rng = seen("moving-average:0.5", np.array([0.0, 8]), np.array([0.0, 16]), np.array([0.0, 4])).range()
    assert rng == Range(0, 8)


@pytest.mark.parametrize("word", ["moving-average:0", "moving-average:1.5", "moving-average:nan", "moving-average:x"])
def test_a_momentum_is_a_share(word: str) -> None:
    with pytest.raises(BadRecipe, match="is no momentum: a new batch weighs more than 0 and up to 1"):
        collectors.get(word)


@pytest.mark.parametrize("word", ["entropy@8", "mse@4097", "percentile@", "percentile:99@-5", "mse@1e3"])
def test_a_histogram_has_so_many_bins(word: str) -> None:
    with pytest.raises(BadRecipe, match="bins: a histogram has 16 to 4096"):
        collectors.get(word)


def test_methods_without_a_histogram_have_no_bins() -> None:
    with pytest.raises(BadRecipe, match="minmax reads no histogram"):
        collectors.get("minmax@64")


@few
@given(batches=BATCHES, bins=st.integers(2, 300))
def test_a_coarser_histogram_is_that_of_the_same_numbers(batches: list[NDArray], bins: int) -> None:
    whole = histogram(*batches)
    coarse = whole.coarsened(bins)
    assert coarse.spans_its_range
    assert len(coarse.counts) <= bins
    assert (coarse.total, coarse.low, coarse.high) == (whole.total, whole.low, whole.high)
    # Of a bin twice as wide, neither too many nor moved: twice coarsened is coarsened once.
    again = whole.coarsened(min(BINS, 2 * bins)).coarsened(bins)
    assert (again.exponent, again.first, again.counts.tolist()) == (
        coarse.exponent,
        coarse.first,
        coarse.counts.tolist(),
    )


def test_fewer_bins_say_less() -> None:
    numbers = normal(20_000)
    fine, coarse = seen("percentile:99", numbers).range(), seen("percentile:99@16", numbers).range()
    assert fine is not None
    assert coarse is not None
    assert 1 < (coarse.high - coarse.low) / (fine.high - fine.low) < 2

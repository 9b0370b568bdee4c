"""What mse and entropy make of known distributions, against numpy on the numbers themselves."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import collectors
from onnxq.summaries.histogram import Histogram
from onnxq.summaries.ranges import UINT8, Grid, Range
from onnxq.summaries.summary import Summary

GRIDS = [UINT8, Grid(15), Grid(254, symmetric=True), Grid(14, symmetric=True)]
RNG = np.random.default_rng(7)
CASES: dict[str, NDArray] = {
    "normal": RNG.standard_normal(20_000),
    "laplace": RNG.laplace(size=20_000),
    "relu": np.maximum(RNG.standard_normal(20_000), 0),
    "outliers": np.r_[RNG.standard_normal(20_000), 500.0, -300.0],
    "negative": -RNG.exponential(size=20_000),
    "uniform": RNG.uniform(-3, 5, 20_000),
    "far": RNG.uniform(100, 101, 20_000),
    "two values": np.r_[np.zeros(5000), np.full(10, 3.0)],
    "tiny": RNG.standard_normal(10_000) * 1e-30,
    "huge": RNG.standard_normal(10_000) * 1e30,
}


def seen(x: NDArray) -> Summary:
    made = Summary()
    made.update(x.astype(np.float32))
    return made


def rounded(x: NDArray, r: Range, grid: Grid) -> NDArray:
    """`x` as the nearest code of `grid` spread over `r` and zero."""
    low, high = min(r.low, 0.0), max(r.high, 0.0)
    if grid.symmetric:
        high = max(-low, high)
        low = -high
    step = (high - low) / grid.steps
    zero = round(-low / step)
    return (np.clip(np.round(x / step) + zero, 0, grid.steps) - zero) * step


def error(x: NDArray, r: Range, grid: Grid) -> float:
    return float(np.mean(((x - rounded(x, r, grid)) / np.abs(x).max()) ** 2))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_mse_is_hardly_beaten_by_trying_every_range(case: str, grid: Grid) -> None:
    x = CASES[case].astype(np.float32).astype(np.float64)
    found = collectors.get("mse")(seen(x)).range(grid)
    assert found is not None
    tried = [Range(f * min(x.min(), 0), g * max(x.max(), 0)) for f in _FRACTIONS for g in _FRACTIONS]
    least, got = min(error(x, r, grid) for r in tried), error(x, found, grid)
    # Rounding is taken for evenly spread, which few values, few codes and single zeros are not.
    assert got <= 1.15 * least + 1e-12


_FRACTIONS = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.25, 0.1, 0.03, 0.01]


@pytest.mark.parametrize("case", CASES)
def test_mse_is_at_most_that_of_the_whole_range(case: str) -> None:
    x = CASES[case].astype(np.float32).astype(np.float64)
    summary = seen(x)
    found, whole = (collectors.get(method)(summary).range() for method in ("mse", "minmax"))
    assert found is not None and whole is not None
    assert error(x, found, UINT8) <= 1.02 * error(x, whole, UINT8)


def test_mse_clips_more_the_fewer_codes_there_are() -> None:
    summary = seen(CASES["normal"])
    ends = [collectors.get("mse")(summary).range(Grid(steps)).high for steps in (3, 15, 255, 65535)]  # type: ignore[union-attr]
    assert ends == sorted(ends) and ends[0] < 0.7 * ends[-1]


def test_entropy_and_mse_leave_outliers_out() -> None:
    summary = seen(CASES["outliers"])
    for method, limit in (("entropy", 200), ("mse", 490)):
        found = collectors.get(method)(summary).range()
        assert found is not None
        assert found.low > -min(limit, 299) and found.high < limit


def test_entropy_keeps_the_range_of_evenly_spread_numbers() -> None:
    x = CASES["uniform"]
    found = collectors.get("entropy")(seen(x)).range()
    assert found is not None
    assert found.high > 0.9 * x.max() and found.low > -3.01


def test_entropy_is_the_least_divergence_as_written_down() -> None:
    """Against the definition in loops over bins and thresholds."""
    x = CASES["laplace"]
    summary = seen(x)
    h = summary.histogram
    assert h is not None
    start, counts = h.magnitudes()
    assert start == 0
    counts[0] -= summary.zeros
    used, levels = len(counts), 128
    best, least = used, np.inf
    for end in sorted({int(e) for e in np.linspace(0, used, 129)[1:] if e >= levels}):
        p = counts[:end].astype(float)
        p[-1] += counts[end:].sum()
        q = np.zeros(end)
        for level in range(levels):
            bins = [i for i in range(end) if i * levels // end == level]
            filled = [i for i in bins if counts[i] > 0]
            for i in filled:
                q[i] = counts[filled].sum() / len(filled)
        p, q = p / p.sum(), q / q.sum()
        divergence = sum(p[i] * np.log(p[i] / max(q[i], 1e-9)) for i in range(end) if p[i] > 0)
        if divergence < least:
            best, least = end, divergence
    found = collectors.get("entropy")(summary).range()
    limit = best * h.width
    assert found == Range(max(h.low, -limit), min(h.high, limit))


def test_one_summary_serves_every_method() -> None:
    x = CASES["laplace"].astype(np.float32)
    shared = seen(x)
    for method in collectors.names():
        alone = collectors.get(method)()
        alone.update(x)
        assert collectors.get(method)(shared).range() == alone.range()


def test_a_summary_without_histogram_gives_no_range_to_those_that_read_it() -> None:
    bare = Summary(histogram=None)
    bare.update(CASES["normal"])
    for method in collectors.names():
        collector = collectors.get(method)(bare)
        assert (collector.range() is None) == collector.needs_histogram
    assert Histogram().total == 0

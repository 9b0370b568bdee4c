"""Runs in turns, so that whatever else a machine does hits all models alike; medians with what is known of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from onnxq.benching.result import Median

#: Turns at least and at most.
LEAST, MOST = 7, 2000
#: Standard deviations of a normal distribution that hold 95 %.
SIGMAS = 1.96


def in_turns(runs: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Milliseconds of each run of each function, called in turns, each once before that.

    Args:
        seconds: for each of them, about.
    """
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    until = time.perf_counter() + seconds * len(runs)
    while len(times[0]) < LEAST or (time.perf_counter() < until and len(times[0]) < MOST):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(1e3 * (time.perf_counter() - start))
    return times


def median_of(numbers: Sequence[float]) -> Median:
    """The median, and the interval between two of the numbers that holds it with a probability of 95 %.

    How many of n numbers lie below the median is binomially distributed, whatever they are distributed like: ranks
    follow from that (Conover, Practical Nonparametric Statistics, 3.2; normal approximation).
    """
    ordered, n = np.sort(np.asarray(numbers, np.float64)), len(numbers)
    half = SIGMAS * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - half) - 1), min(n - 1, math.ceil(n / 2 + half))
    return Median(float(np.median(ordered)), float(ordered[low]), float(ordered[high]), n)


def ratio_of(times: Sequence[float], to: Sequence[float]) -> Median:
    """Of the ratios of runs of the same turn."""
    return median_of([a / max(b, 1e-9) for a, b in zip(times, to, strict=True)])

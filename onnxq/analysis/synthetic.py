"""Weights made up for benchmarks: each maker stands for a property that some format suffers from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onnxq.formats import FloatArray

#: Powers of ten over which the channels' standard deviations are spread by `channels`.
DECADES = 2.0
#: Share of outliers made by `outliers`, and how many standard deviations they are large.
OUTLIERS, OUTLIER_SIZE = 1e-3, 20.0

Maker = Callable[[tuple[int, int], int], FloatArray]


def gaussian(shape: tuple[int, int], seed: int = 0) -> FloatArray:
    """Standard normal: what trained weights look like from afar, and what nf4 is made for."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def uniform(shape: tuple[int, int], seed: int = 0) -> FloatArray:
    """Evenly spread over [-1, 1): the best case of evenly spaced levels, for which theory is exact."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def channels(shape: tuple[int, int], seed: int = 0) -> FloatArray:
    """Gaussian rows whose standard deviations span `DECADES` powers of ten: one scale for all loses the small ones."""
    rng = np.random.default_rng(seed)
    spreads = 10.0 ** rng.permutation(np.linspace(-DECADES / 2, DECADES / 2, shape[0]))
    return (rng.standard_normal(shape) * spreads[:, None]).astype(np.float32)


def outliers(shape: tuple[int, int], seed: int = 0) -> FloatArray:
    """Gaussian with a share of `OUTLIERS` of the weights `OUTLIER_SIZE` standard deviations large, of either sign."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape, dtype=np.float32)
    count = max(1, round(OUTLIERS * w.size)) if w.size else 0
    w.reshape(-1)[rng.choice(w.size, count, replace=False)] = OUTLIER_SIZE * rng.choice([-1, 1], count)
    return w


#: By name: weights [N, K] of a shape and a seed. Equal seeds give equal weights, on any machine.
MAKERS: Mapping[str, Maker] = {make.__name__: make for make in (gaussian, uniform, channels, outliers)}

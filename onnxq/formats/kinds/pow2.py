"""Shared by the formats whose scales are powers of two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import FloatArray, Granularity


def fit(w: FloatArray, granularity: Granularity, qmax: int) -> FloatArray:
    """2^k with k of the two neighbours of log2(absmax / qmax), whichever makes the smaller squared error.

    The lower one clips, and is finer for all that it does not clip. Scales stay normal float32 numbers; that of a group
    of zeros is 1.
    """
    groups, axes = granularity.groups(w)
    rest = [i for i in range(groups.ndim) if i not in axes]
    if not groups.size:
        return np.ones(granularity.scale_shape(w.shape), np.float32)
    rows = groups.transpose([*rest, *axes]).reshape(*(groups.shape[i] for i in rest), -1).astype(np.float64)
    largest = np.max(np.abs(rows), axis=-1)
    exponent = np.frexp(np.where(largest > 0, largest, qmax) / qmax)[1]
    highest = 128 - qmax.bit_length()  # qmax steps stay finite
    low, high = (power(np.clip(k, -126, highest)) for k in (exponent - 1, exponent))
    better = squared_error(rows, low, qmax) < squared_error(rows, high, qmax)
    chosen = np.where(better, low, high)
    # frexp of an exact power 2^k gives k + 1: the scale itself is then the lower neighbour, and nothing is clipped.
    return np.where(largest > 0, chosen, 1.0).astype(np.float32)


def power(k: NDArray[np.integer]) -> NDArray[np.float64]:
    return np.ldexp(1.0, k)


def squared_error(rows: NDArray[np.float64], scale: NDArray[np.float64], qmax: int) -> NDArray[np.float64]:
    """Of each row, rounded to multiples of its scale."""
    steps = np.clip(np.rint(rows / scale[..., None]), -qmax, qmax)
    return np.square(steps * scale[..., None] - rows).sum(axis=-1)

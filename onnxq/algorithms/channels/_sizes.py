"""Shared by the ways of scaling channels: how large they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Factors stay within so many powers of two of the middle one, so that no channel leaves the range of its type.
REACH = 10


class ChannelSizes(NamedTuple):
    """[channels] each: of an activation the largest and the mean magnitude, of the weights behind it the largest."""

    largest: NDArray[np.float64]
    mean: NDArray[np.float64]
    weights: NDArray[np.float64]


def centred(factors: NDArray[np.float64]) -> NDArray[np.float32]:
    """The same, so that smallest and largest lie evenly about 1; 1 for channels of which nothing is known."""
    known = np.isfinite(factors) & (factors > 0)
    if not known.any():
        return np.ones(len(factors), np.float32)
    powers = np.log2(np.where(known, factors, 1.0))
    powers -= (powers[known].min() + powers[known].max()) / 2
    return np.where(known, np.exp2(np.clip(powers, -REACH, REACH)), 1.0).astype(np.float32)

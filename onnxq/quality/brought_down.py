"""Numbers whose squares would be infinite, as others that stand to each other as they do."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: Sums of the squares of smaller numbers, however many, are finite in float64: two to this power, near 1e140.
LARGEST = 465


def brought_down(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray, int]:
    """Both, and 0; where finite numbers in them are too large for sums of squares, both over a power of two, and which.

    How large an error is beside what it is an error of stays the same.
    """
    largest = max(_largest(a), _largest(b))
    if largest < 2.0**LARGEST:
        return a, b, 0
    by = math.frexp(largest)[1] - LARGEST
    return np.ldexp(a.astype(np.float64), -by), np.ldexp(b.astype(np.float64), -by), by


def _largest(x: NDArray) -> float:
    """Of the finite numbers."""
    if x.dtype != np.float64 or not x.size:  # other types hold none that is too large
        return 0.0
    largest = max(float(x.max()), -float(x.min()))
    return largest if math.isfinite(largest) else float(np.abs(x).max(where=np.isfinite(x), initial=0.0))

"""Numbers whose squares float64 does not hold, as others that stand to each other as they do."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

#: Powers of two. From the first on, near 1e140, sums of squares may be infinite; below the second, near 1e-120, the
#: square of a difference may be 0. Over and under the third, both are as far from that as usual numbers.
LARGEST, LEAST, BY = 465, -400, 600


def ranges(a: NDArray, b: NDArray) -> Iterator[tuple[int, NDArray, NDArray]]:
    """The numbers of both by range, and the power of two that they are over: 0, `BY` of huge ones, -`BY` of tiny ones.

    In one sum, an error of usual numbers would be nothing beside the squares of huge ones, and one of tiny ones 0. Two
    numbers lie where the larger one does, if it is finite.
    """
    if np.float64 not in (a.dtype, b.dtype):  # other types hold usual numbers alone
        yield from [(0, a, b)] * bool(a.size)
        return
    a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    larger = np.maximum(np.abs(a), np.abs(np.where(np.isfinite(b), b, 0.0)))
    is_huge, is_tiny = larger >= 2.0**LARGEST, (larger > 0) & (larger < 2.0**LEAST)
    for by, places in ((0, ~(is_huge | is_tiny)), (BY, is_huge), (-BY, is_tiny)):
        if places.any():
            yield by, np.ldexp(a[places], -by), np.ldexp(b[places], -by)


def brought_near(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Both; where the largest finite number in them is huge or tiny, over a power of two, at which it is neither."""
    largest = max(_largest(a), _largest(b))
    if largest == 0 or 2.0**LEAST <= largest < 2.0**LARGEST:
        return a, b
    by = math.frexp(largest)[1] - LARGEST
    return np.ldexp(a.astype(np.float64), -by), np.ldexp(b.astype(np.float64), -by)


def _largest(x: NDArray) -> float:
    """Of the finite numbers; 0 in types that hold usual ones alone."""
    if x.dtype != np.float64 or not x.size:
        return 0.0
    largest = max(float(x.max()), -float(x.min()))
    return largest if math.isfinite(largest) else float(np.abs(x).max(where=np.isfinite(x), initial=0.0))

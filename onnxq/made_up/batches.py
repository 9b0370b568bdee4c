"""Inputs of any size: of pictures and sounds as much is made as is worth its time, and the rest is that again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: Of one batch that differ, at most.
DIFFERENT = 64


def batch(one: Callable[[], NDArray], count: int, most: int = DIFFERENT) -> NDArray:
    """[count, …] of what `one` makes."""
    made = np.array([one() for _ in range(min(count, most))])
    return repeated(made, count, 0)


def repeated(x: NDArray, size: int, axis: int) -> NDArray:
    """`x` again and again along `axis`, up to `size` places."""
    return x if x.shape[axis] >= size else x.take(np.arange(size) % x.shape[axis], axis)

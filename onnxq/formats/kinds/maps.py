"""The 256 numbers in [-1, 1] that codes of 8 bits stand for: the maps of bitsandbytes.

Source: `create_dynamic_map` and `create_linear_map` of bitsandbytes; Dettmers et al., 8-bit Optimizers via Block-wise
Quantization (2022), section 2.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

#: Exponents of ten that the dynamic map has.
EXPONENTS = 7


@functools.cache
def dynamic_map(signed: bool = True) -> NDArray[np.float32]:
    """[256] float32, ascending: for each power of ten from 1e-6 to 1 twice as many fractions as for the one before.

    The arithmetic is that of the peer (a fused multiply-add in single precision), so that every entry is the same.

    Args:
        signed: from -1 to 1; else from 0 to 1, with twice as many fractions.
    """
    entries = [0.0, 1.0]
    for exponent in range(EXPONENTS):
        count = 2 ** (exponent if signed else exponent + 1)
        for a, b in itertools.pairwise(_points(0.1, count)):
            middle = (a + b) / np.float32(2) * np.float32(10.0 ** (exponent - EXPONENTS + 1))
            entries += [float(middle), -float(middle)] if signed else [float(middle)]
    return _fixed(np.sort(np.array(entries, np.float32)))


@functools.cache
def linear_map(signed: bool = True) -> NDArray[np.float32]:
    """[256] float32, ascending, equally spaced over [-1, 1], where 0 comes twice; else over [0, 1]."""
    points = _points(-1.0, 254) if signed else _points(0.0, 255)
    return _fixed(np.insert(points, 127, 0) if signed else np.array(points))


def _points(start: float, count: int) -> list[np.float32]:
    """The ends of `count` equal parts of [start, 1], computed from both sides."""
    low, high = float(np.float32(start)), 1.0
    step = float((np.float32(high) - np.float32(low)) / np.float32(count))
    return [
        np.float32(low + step * i) if i < (count + 1) // 2 else np.float32(high - step * (count - i))
        for i in range(count + 1)
    ]


def _fixed(table: NDArray[np.float32]) -> NDArray[np.float32]:
    table.flags.writeable = False
    return table

"""Shared by schemes that pack codes into words of 32 bits, or lay them out in bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq import layouts

#: Rows of which bits are taken apart at a time: bounds what widths that do not divide a byte take.
_SLICE = 1 << 22


def stream(words: NDArray, bits: int, count: int) -> NDArray[np.uint8]:
    """[rows, count] codes of [rows, words], code i in the bits from i · bits on, the lowest of the first word first.

    Args:
        words: little-endian integers of any width.
        bits: of a code, 1 to 8.
    """
    packed = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits in (1, 2, 4, 8):
        return np.ascontiguousarray(layouts.from_low_first(packed, bits, count))
    out = np.empty((len(packed), count), np.uint8)
    step, weights = max(1, _SLICE // max(1, count * bits)), (1 << np.arange(bits)).astype(np.uint8)
    for start in range(0, len(packed), step):
        single = np.unpackbits(packed[start : start + step], axis=1, count=count * bits, bitorder="little")
        out[start : start + step] = single.reshape(-1, count, bits) @ weights
    return out


def spaced(words: NDArray, bits: int, count: int) -> NDArray[np.uint8]:
    """[rows, count] codes of [rows, words] of 32 bits, as many whole ones in each word as fit."""
    each, mask = 32 // bits, np.uint32((1 << bits) - 1)
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    codes = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & mask
    return np.ascontiguousarray(codes.reshape(len(words), -1)[:, :count].astype(np.uint8))

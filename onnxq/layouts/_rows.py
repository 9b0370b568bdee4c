"""Shared by the layouts: a weight as rows of blocks, and codes as unsigned numbers.

`rows` are the weight with the blocked axis moved last and all other axes flattened: for a matrix that is [N, K]
whichever way it lies in the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments, fast
from onnxq.layouts._layout import layout

Bytes = NDArray[np.uint8]
#: Of layouts, which fill up the last block of a row.
LONGEST_BLOCK = 1 << 20


def blocks_last(q: QuantizedTensor, codes: NDArray) -> NDArray:
    """`codes` as [rows, ceil(K / B), B]: the blocked axis moved last and cut into blocks, padded with the zero code."""
    axis, block = blocked(q)
    rows = fast.transposed(codes) if codes.ndim == 2 and axis == 0 else np.moveaxis(codes, axis, -1)
    k = rows.shape[-1]
    rows = rows.reshape(-1, k) if rows.size else rows.reshape(math.prod(rows.shape[:-1]), k)
    missing = -k % block
    if missing:
        rows = np.concatenate([rows, np.repeat(zero_code(q)[:, -1:], missing, axis=1)], axis=1)
    return rows.reshape(len(rows), -(-k // block), block)


@layout(lambda w: w.format.code_type, lambda w: (w.rows * w.blocks, w.block))
def block_rows(q: QuantizedTensor) -> NDArray:
    """The codes, a block a row."""
    rows = blocks_last(q, q.codes)
    return rows.reshape(-1, rows.shape[-1])


def blocked(q: QuantizedTensor) -> tuple[int, int]:
    """(axis, block) of a weight in blocks.

    Raises:
        ValueError: its scales are of channels, or of the whole, or its blocks too long to be filled up.
    """
    axis, block = q.granularity.axis, q.granularity.block
    if axis is None or block is None:
        raise ValueError("this layout is one of weights in blocks: Granularity(axis, block)")
    if block > LONGEST_BLOCK:
        raise ValueError(f"a block of {block} weights, filled up, is none that a kernel reads: {LONGEST_BLOCK} at most")
    return axis, block


@layout(lambda w: w.scale_type, lambda w: (w.rows, w.blocks))
def scales_by_row(q: QuantizedTensor) -> NDArray:
    """Scales as [rows, ceil(K / B)], in the order of `blocks_last`."""
    return by_row(q.granularity, arguments.present(q.scales, "scales"))


@layout(lambda w: w.format.offset_type, lambda w: (w.rows, w.blocks))
def zero_points_by_row(q: QuantizedTensor) -> NDArray:
    """Zero points as [rows, ceil(K / B)], in the order of `blocks_last`."""
    return by_row(q.granularity, arguments.present(q.zero_points, "zero points"))


def by_row(granularity: Granularity, array: NDArray) -> NDArray:
    """An array like the weight or its scales, as [rows, length of the blocked axis]."""
    if granularity.axis is None or granularity.block is None:
        raise ValueError("this layout is one of weights in blocks: Granularity(axis, block)")
    rows = np.moveaxis(array, granularity.axis, -1)
    return rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])


def from_rows(rows: NDArray, shape: Sequence[int], axis: int) -> NDArray:
    """The inverse of `by_row` for an array that shall have `shape`."""
    others = [size for i, size in enumerate(shape) if i != axis]
    return np.ascontiguousarray(np.moveaxis(rows.reshape(*others, shape[axis]), -1, axis))


def zero_code(q: QuantizedTensor) -> NDArray:
    """[rows, blocks] of the code that decodes to zero."""
    if q.zero_points is not None:
        return zero_points_by_row(q)
    levels = q.format.levels
    zero = 0 if levels is None else int(np.abs(levels).argmin())
    return np.full(scales_by_row(q).shape, zero, q.codes.dtype)


def unsigned(codes: NDArray, bits: int) -> Bytes:
    """Signed codes moved up by 2^(bits − 1), so that the middle of the unsigned range stands for zero."""
    if codes.dtype != np.int8:
        return codes.astype(np.uint8, copy=False)
    return codes.view(np.uint8) + np.uint8(1 << (bits - 1))


def signed(codes: Bytes, bits: int) -> NDArray[np.int8]:
    """The inverse of `unsigned`."""
    return (codes - np.uint8(1 << (bits - 1))).view(np.int8)

"""GGUF tensors: each block of 32 weights in one run of bytes, its scale in front.

    Q4_0   d:2                 low nibbles elements 0–15, high nibbles 16–31
    Q4_1   d:2 m:2             the same
    Q5_0   d:2      high:4     the same; bit i of `high` is the fifth bit of element i
    Q5_1   d:2 m:2  high:4     the same
    Q8_0   d:2                 32 int8
    MXFP4  e:1                 nibbles as in Q4_0
    F16, BF16                  the numbers

Source: ggml-common.h of ggml and gguf's quants.py. Numbers of several bytes are little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.errors import BadModel
from onnxq.formats import E8M0, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.layouts._rows import Bytes, blocked, blocks_last, scales_by_row, signed, unsigned, zero_points_by_row

BLOCK = 32


def gguf(q: QuantizedTensor) -> Bytes:
    """[rows, bytes of a row] of a weight in a format that GGUF has a name for, in blocks of 32.

    Raises:
        BadModel: GGUF has no such format, or rows are not whole blocks of 32.
    """
    _require_name(q.format)
    if q.scales is None:
        return np.ascontiguousarray(q.codes).reshape(-1, q.shape[-1]).view(np.uint8)
    axis, block = blocked(q)
    if block != BLOCK or q.shape[axis] % BLOCK:
        raise BadModel(f"GGUF needs rows of whole blocks of {BLOCK}, not of {q.shape[axis]} in blocks of {block}")
    codes = unsigned(blocks_last(q, q.codes), q.format.bits)
    rows, blocks, _ = codes.shape
    parts = [_bytes_of(scales_by_row(q))]
    if q.zero_points is not None:
        parts.append(_bytes_of(zero_points_by_row(q)))
    if q.format.bits == 5:
        parts.append(np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little"))
    if q.format.bits == 8:
        parts.append(codes ^ np.uint8(128))  # two's complement again
    else:
        low = codes & np.uint8(15)
        parts.append(low[..., :16] | (low[..., 16:] << np.uint8(4)))
    joined = np.concatenate(parts, axis=-1)
    return joined.reshape(rows, blocks * joined.shape[-1])


def from_gguf(format: Format, data: Bytes, shape: Sequence[int]) -> QuantizedTensor:
    """The weight of `shape`, blocks along its last axis, whose GGUF bytes are `data`.

    Raises:
        BadModel: GGUF has no such format.
        ValueError: rows of no whole blocks of 32, or more or fewer bytes than that shape takes.
    """
    _require_name(format)
    if format.scale_type is not None and (not len(shape) or shape[-1] % BLOCK):
        raise ValueError(f"GGUF needs rows of whole blocks of {BLOCK}, not a weight of shape {list(shape)}")
    data = arguments.raw("GGUF data", data, nbytes(format, arguments.count(shape)))
    if format.scale_type is None:
        numbers = np.ascontiguousarray(data).reshape(-1).view(format.code_type)
        return QuantizedTensor(format, Granularity(), numbers.reshape(shape))
    scale_shape = (*shape[:-1], shape[-1] // BLOCK)
    rest = data.reshape(math.prod(scale_shape), nbytes(format, BLOCK))
    scales, rest = _take(rest, format.scale_type)
    zeros = None
    if format.has_minimum:
        minima, rest = _take(rest, format.scale_type)
        zeros = minima.reshape(scale_shape)
    if format.bits == 8:
        codes: NDArray = rest.view(np.int8)
    else:
        high, low = rest[:, :-16], rest[:, -16:]
        unsigned_codes = np.concatenate([low & np.uint8(15), low >> np.uint8(4)], axis=1)
        if high.size:
            unsigned_codes |= np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4)
        codes = signed(unsigned_codes, format.bits) if format.code_type == np.int8 else unsigned_codes
    granularity = Granularity(len(shape) - 1, BLOCK)
    return QuantizedTensor(format, granularity, codes.reshape(shape), scales.reshape(scale_shape), zeros)


def _require_name(format: Format) -> None:
    if format.gguf is None:
        known = [word for word in formats.names() if formats.get(word).gguf]
        raise BadModel(f"GGUF has no {format.name}; choose one of {', '.join(known)}")


def nbytes(format: Format, size: int) -> int:
    """Bytes of `size` weights in a format that GGUF has a name for, whole blocks of 32 if it has blocks."""
    if format.scale_type is None:
        return size * format.code_type.itemsize
    heads = 2 if format.has_minimum else 1
    return size // BLOCK * (format.scale_type.itemsize * heads + BLOCK * format.bits // 8)


def _bytes_of(scales: NDArray) -> Bytes:
    """[rows, blocks, bytes]."""
    little = scales.view(np.uint8) if scales.dtype == E8M0 else scales.astype("<f2", copy=False)
    return np.ascontiguousarray(little)[..., None].view(np.uint8)


def _take(blocks: Bytes, dtype: np.dtype) -> tuple[NDArray, Bytes]:
    """The number at the head of each block, and what follows it."""
    return np.ascontiguousarray(blocks[:, : dtype.itemsize]).view(dtype), blocks[:, dtype.itemsize :]

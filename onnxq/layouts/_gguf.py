"""GGUF tensors: each block of weights in one run of bytes; those of 32 have their scale in front.

    Q4_0   d:2                 low nibbles elements 0–15, high nibbles 16–31
    Q4_1   d:2 m:2             the same
    Q5_0   d:2      high:4     the same; bit i of `high` is the fifth bit of element i
    Q5_1   d:2 m:2  high:4     the same
    Q8_0   d:2                 32 int8
    MXFP4  e:1                 nibbles as in Q4_0
    F16, BF16                  the numbers

Super blocks of 256 weights: `_gguf_super.py`.

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
from onnxq.formats.kinds.super_blocks import StoredScales, sharing
from onnxq.layouts._gguf_super import PACKINGS, SUPER, Parts
from onnxq.layouts._rows import Bytes, blocked, blocks_last, scales_by_row, signed, unsigned, zero_points_by_row

BLOCK = 32


def gguf(q: QuantizedTensor) -> Bytes:
    """[rows, bytes of a row] of a weight in a format that GGUF has a name for, in blocks of its own size.

    Raises:
        BadModel: GGUF has no such format, or rows are not whole blocks.
    """
    _require_name(q.format)
    if q.scales is None:
        *others, last = q.shape or (1,)
        return np.ascontiguousarray(q.codes).reshape(math.prod(others), last).view(np.uint8)
    (axis, block), whole = blocked(q), gguf_block(q.format)
    if block != q.format.default_block or q.shape[axis] % whole:
        raise BadModel(f"GGUF needs rows of whole blocks of {whole}, not of {q.shape[axis]} in blocks of {block}")
    if q.format.gguf in PACKINGS:
        return _super_blocks(q)
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
        ValueError: rows of no whole blocks, or more or fewer bytes than that shape takes.
    """
    _require_name(format)
    if not len(shape) or shape[-1] % gguf_block(format):
        raise ValueError(
            f"GGUF needs rows of whole blocks of {gguf_block(format)}, not a weight of shape {list(shape)}"
        )
    data = arguments.raw("GGUF data", data, nbytes(format, arguments.count(shape)))
    if format.scale_type is None:
        numbers = np.ascontiguousarray(data).reshape(-1).view(format.code_type)
        return QuantizedTensor(format, Granularity(), numbers.reshape(shape))
    if format.gguf in PACKINGS:
        return _from_super_blocks(format, data, tuple(shape))
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
        codes = _codes(format, unsigned_codes)
    granularity = Granularity(len(shape) - 1, BLOCK)
    return QuantizedTensor(format, granularity, codes.reshape(shape), scales.reshape(scale_shape), zeros)


def gguf_block(format: Format) -> int:
    """Weights of a row that go together in a format that GGUF has a name for."""
    if format.scale_type is None:
        return 1
    return SUPER if format.gguf in PACKINGS else BLOCK


def _super_blocks(q: QuantizedTensor) -> Bytes:
    codes = unsigned(blocks_last(q, q.codes), q.format.bits)
    rows = len(codes)
    if isinstance(q.nested, StoredScales):
        scales, factors = _of_scales(q.nested.scales)
        minima = None
        if q.nested.minima is not None:  # which are subtracted there
            minima, negative = _of_scales(q.nested.minima)
            factors = np.concatenate([factors, np.negative(negative)], axis=1)
    else:
        # Ternary codes: 0 to 2.
        codes, scales, minima = codes - np.uint8(1), None, None
        factors = scales_by_row(q).reshape(-1, 1)
    assert q.format.gguf is not None
    packed = PACKINGS[q.format.gguf].pack(Parts(codes.reshape(-1, SUPER), scales, minima, factors))
    return packed.reshape(rows, -1)


def _of_scales(stored: QuantizedTensor) -> tuple[Bytes, NDArray]:
    """([super blocks, blocks] unsigned codes, [super blocks, 1] factors)."""
    codes = unsigned(blocks_last(stored, stored.codes), stored.format.bits)
    return codes.reshape(-1, codes.shape[-1]), scales_by_row(stored).reshape(-1, 1)


def _from_super_blocks(format: Format, data: Bytes, shape: tuple[int, ...]) -> QuantizedTensor:
    packing = PACKINGS[format.gguf or ""]
    found = packing.unpack(data.reshape(-1, packing.nbytes))
    block = format.default_block or SUPER
    granularity, scale_shape = Granularity(len(shape) - 1, block), (*shape[:-1], shape[-1] // block)
    if format.stored_scales is None:
        codes = found.codes.reshape(shape).view(np.int8) - np.int8(1)
        return QuantizedTensor(format, granularity, codes, found.factors.reshape(scale_shape))
    shared = sharing(format, granularity)

    def stored(kind: Format, codes: Bytes | None, factors: NDArray) -> QuantizedTensor:
        assert codes is not None
        numbers = _codes(kind, codes).reshape(scale_shape)
        return QuantizedTensor(kind, shared, numbers, factors.reshape(*shape[:-1], shape[-1] // SUPER))

    scales, minima = stored(format.stored_scales, found.scales, found.factors[:, 0]), None
    if format.stored_minima is not None:
        minima = stored(format.stored_minima, found.minima, -found.factors[:, 1])
    weights = _codes(format, found.codes)
    nested = StoredScales(scales, minima)
    return QuantizedTensor(format, granularity, weights.reshape(shape), *nested.values, nested)


def _codes(format: Format, unsigned_codes: Bytes) -> NDArray:
    """What files hold as unsigned numbers, in the type of the format."""
    return signed(unsigned_codes, format.bits) if format.code_type == np.int8 else unsigned_codes


def _require_name(format: Format) -> None:
    if format.gguf is None:
        known = [word for word in formats.names() if formats.get(word).gguf]
        raise BadModel(f"GGUF has no {format.name}; choose one of {', '.join(known)}")


def nbytes(format: Format, size: int) -> int:
    """Bytes of `size` weights in a format that GGUF has a name for, whole blocks if it has blocks."""
    if format.scale_type is None:
        return size * format.code_type.itemsize
    if format.gguf in PACKINGS:
        return size // SUPER * PACKINGS[format.gguf].nbytes
    heads = 2 if format.has_minimum else 1
    return size // BLOCK * (format.scale_type.itemsize * heads + BLOCK * format.bits // 8)


def _bytes_of(scales: NDArray) -> Bytes:
    """[rows, blocks, bytes]."""
    little = scales.view(np.uint8) if scales.dtype == E8M0 else scales.astype("<f2", copy=False)
    return np.ascontiguousarray(little)[..., None].view(np.uint8)


def _take(blocks: Bytes, dtype: np.dtype) -> tuple[NDArray, Bytes]:
    """The number at the head of each block, and what follows it."""
    return np.ascontiguousarray(blocks[:, : dtype.itemsize]).view(dtype), blocks[:, dtype.itemsize :]

"""The bytes of onnxruntime's own operators (domain com.microsoft), and of the standard ones that unpack such weights.

`K` is the contraction, `N` the output dimension, `B` the block. Source: onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import arguments
from onnxq.layouts._bits import from_low_first, high_first, low_first
from onnxq.layouts._layout import layout
from onnxq.layouts._rows import Bytes, blocked, blocks_last, scales_by_row, signed, unsigned, zero_points_by_row


@layout(np.uint8, lambda w: (w.rows, w.blocks, w.block * w.format.bits // 8))
def matmul_nbits(q: QuantizedTensor) -> Bytes:
    """MatMulNBits' B, [N, ceil(K / B), B · bits / 8]: unsigned codes, the first k in the lowest bits; 2, 4, 8 bits.

    Raises:
        ValueError: a weight of another width, or not in blocks.
    """
    _require_bits(q.format, 2, 4, 8)
    middle = {2: 0xAA, 4: 0x88, 8: 0x80}[q.format.bits] if q.codes.dtype == np.int8 else 0
    return low_first(blocks_last(q, q.codes), q.format.bits, middle)


@layout(np.uint8, lambda w: (w.rows, -(-w.blocks * w.format.bits // 8)))
def matmul_nbits_zero_points(q: QuantizedTensor) -> Bytes:
    """MatMulNBits' zero points, [N, ceil(ceil(K / B) · bits / 8)]; the middle code where the format has none.

    Raises:
        ValueError: a weight of another width, or not in blocks.
    """
    _require_bits(q.format, 2, 4, 8)
    if q.zero_points is None:
        zeros: NDArray = np.full(scales_by_row(q).shape, 1 << (q.format.bits - 1), np.uint8)
    else:
        zeros = zero_points_by_row(q)
    return low_first(zeros, q.format.bits)


def from_matmul_nbits(
    format: Format, packed: Bytes, scales: ScaleArray, zero_points: Bytes | None, k: int
) -> QuantizedTensor:
    """The [N, K] weight of MatMulNBits' inputs.

    Args:
        format: of the codes.
        packed: uint8, [N, ceil(K / B), B · bits / 8].
        k: inputs, K.
        scales: [N, ceil(K / B)], of any shape with these elements.
        zero_points: as `matmul_nbits_zero_points` packs them; not read for formats without.

    Raises:
        ValueError: arrays whose sizes do not belong together, or a format of another width than 2, 4 or 8 bits.
    """
    _require_bits(format, 2, 4, 8)
    packed = arguments.raw("codes", packed)
    if packed.ndim != 3:
        raise ValueError(f"MatMulNBits' B has the shape [N, blocks, bytes], not {list(packed.shape)}")
    n, blocks, row_bytes = packed.shape
    bits = format.bits
    block = row_bytes * 8 // bits
    if not block or -(-arguments.count((k,)) // block) != blocks:
        raise ValueError(f"{k} weights a row are not {blocks} blocks of {block}")
    arguments.require_size("scales", scales, n * blocks)
    if format.code_type != np.int8 and zero_points is not None:
        zero_points = arguments.raw("zero points", zero_points, n * -(-blocks * bits // 8))
    codes: NDArray = from_low_first(packed, bits, block).reshape(n, blocks * block)[:, :k]
    zeros = None
    if format.code_type == np.int8:
        codes = signed(codes, bits)
    elif zero_points is not None:
        zeros = np.ascontiguousarray(from_low_first(zero_points.reshape(n, -1), bits, blocks))
    return QuantizedTensor(format, Granularity(1, block), np.ascontiguousarray(codes), scales.reshape(n, blocks), zeros)


@layout(np.uint8, lambda w: (w.rows, -(-w.k * w.format.bits // 8)))
def gather_block(q: QuantizedTensor) -> Bytes:
    """GatherBlockQuantized's data, [rows, K · bits / 8]: as `matmul_nbits`, without the padding of the last block."""
    packed = matmul_nbits(q)
    axis, _ = blocked(q)
    n, blocks, row_bytes = packed.shape
    return packed.reshape(n, blocks * row_bytes)[:, : -(-q.shape[axis] * q.format.bits // 8)]


@layout(np.uint8, lambda w: (-(-math.prod(w.shape) // 2),))
def matmul_bnb4(q: QuantizedTensor) -> Bytes:
    """MatMulBnb4's B: the codes of [N, K] flattened, blocks counted through, the first of two in the high nibble.

    Raises:
        ValueError: codes of another width than 4 bits.
    """
    _require_bits(q.format, 4)
    return high_first(q.codes)


def from_matmul_bnb4(format: Format, packed: Bytes, absmax: ScaleArray, size: int, block: int) -> QuantizedTensor:
    """The flattened [N · K] weight (`size` elements, blocks of `block` counted through) of MatMulBnb4's inputs.

    Args:
        format: nf4 or fp4.
        packed: uint8, two codes a byte, the first in the high half.
        absmax: scales, one a block, of any shape.

    Raises:
        ValueError: more or fewer bytes than ceil(size / 2), or scales than blocks.
    """
    _require_bits(format, 4)
    packed = arguments.raw("codes", packed, -(-arguments.count((size,)) // 2))
    arguments.require_size("scales", absmax, math.prod(Granularity(0, block).scale_shape((size,))))
    codes = np.stack([packed >> np.uint8(4), packed & np.uint8(15)], axis=-1).reshape(-1)[:size]
    return QuantizedTensor(format, Granularity(0, block), codes, absmax.reshape(-1))


@layout(np.uint8, lambda w: (w.rows * w.blocks, w.block // 2))
def halves(q: QuantizedTensor) -> Bytes:
    """[rows · blocks, B / 2]: the first half of each block in the low nibbles, the second in the high ones, so that
    standard operators unpack it with one Concat. Signed codes are moved up by 8.

    Raises:
        ValueError: codes of another width than 4 bits, or blocks of an odd size.
    """
    _require_bits(q.format, 4)
    if blocked(q)[1] % 2:
        raise ValueError(f"a block of {blocked(q)[1]} weights has no halves")
    codes = unsigned(blocks_last(q, q.codes), 4)
    n, blocks, block = codes.shape
    codes = codes.reshape(n * blocks, block)
    half = block // 2
    return codes[:, :half] | (codes[:, half:] << np.uint8(4))


def _require_bits(format: Format, *widths: int) -> None:
    """Refuse a format whose codes are of none of these widths.

    Raises:
        ValueError: with the width that they have.
    """
    if format.bits not in widths:
        raise ValueError(f"{format.name} has codes of {format.bits} bits, not of {' or '.join(map(str, widths))}")

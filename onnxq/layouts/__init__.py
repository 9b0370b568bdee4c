"""Which bytes: how the codes of a quantized weight are laid out for the operators that read them.

Every function takes a `QuantizedTensor` and returns arrays as they go to disk. `K` is the contraction, `N` the
output dimension, `B` the block. Element counts that do not fill the last block are padded with codes that decode to
zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import QuantizedTensor
from onnxq.layouts._bits import as_rows, bit_fields, fields_of, group_rows, pack_low_first
from onnxq.layouts._rows import Bytes, blocks_last, scales_by_row, unsigned, zero_points_by_row
from onnxq.layouts._tiles import from_onnxq_tiles, onnxq_scales, onnxq_tiles, onnxq_zero_points

__all__ = [
    "as_rows",
    "bit_fields",
    "blocks_last",
    "fields_of",
    "from_onnxq_tiles",
    "gather_block",
    "group_rows",
    "halves",
    "matmul_bnb4",
    "matmul_nbits",
    "matmul_nbits_zero_points",
    "nibbles_low_first",
    "onnxq_scales",
    "onnxq_tiles",
    "onnxq_zero_points",
    "pack_low_first",
    "scales_by_row",
    "zero_points_by_row",
]


def nibbles_low_first(codes: NDArray) -> Bytes:
    """Two codes a byte along the last axis, the even one in the low nibble. An odd end is filled with 0."""
    codes = codes.astype(np.uint8, copy=False) & np.uint8(0x0F)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def matmul_nbits(q: QuantizedTensor) -> Bytes:
    """MatMulNBits' B, [N, ceil(K / B), B · bits / 8]: unsigned codes of 2, 4 or 8 bits, the first k in the lowest.

    Source: com.microsoft.MatMulNBits in onnxruntime's ContribOperators.md.
    """
    bits = q.format.bits
    codes = unsigned(blocks_last(q, q.codes), bits)
    return codes if bits == 8 else pack_low_first(codes, bits)


def matmul_nbits_zero_points(q: QuantizedTensor) -> Bytes:
    """MatMulNBits' zero points, [N, ceil(ceil(K / B) · bits / 8)]; the middle code where the format has none."""
    if q.zero_points is None:
        zeros: NDArray = np.full(scales_by_row(q).shape, 1 << (q.format.bits - 1), np.uint8)
    else:
        zeros = zero_points_by_row(q)
    return zeros if q.format.bits == 8 else pack_low_first(zeros, q.format.bits)


def gather_block(q: QuantizedTensor) -> Bytes:
    """GatherBlockQuantized's data, [rows, K · bits / 8]: as `matmul_nbits`, without the padding of the last block."""
    packed = matmul_nbits(q)
    axis = q.granularity.axis
    assert axis is not None
    return packed.reshape(len(packed), -1)[:, : -(-q.shape[axis] * q.format.bits // 8)]


def matmul_bnb4(q: QuantizedTensor) -> Bytes:
    """MatMulBnb4's B: the codes of [N, K] flattened, blocks counted through, the first of two in the high nibble.

    Source: com.microsoft.MatMulBnb4 in onnxruntime's ContribOperators.md.
    """
    codes: NDArray = q.codes.reshape(-1)
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    return (codes[0::2] << np.uint8(4)) | codes[1::2]


def halves(q: QuantizedTensor) -> Bytes:
    """[rows · blocks, B / 2]: the first half of each block in the low nibbles, the second in the high ones, so that
    standard operators unpack it with one Concat. Signed codes are moved up by 8."""
    codes = unsigned(blocks_last(q, q.codes), q.format.bits)
    codes = codes.reshape(-1, codes.shape[-1])
    half = codes.shape[1] // 2
    return codes[:, :half] | (codes[:, half:] << np.uint8(4))

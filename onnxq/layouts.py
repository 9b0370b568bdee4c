"""Which bytes: how the codes of a quantized weight are laid out for the operators that read them.

Every function takes a `QuantizedTensor` and returns arrays as they go to disk. `K` is the contraction, `N` the
output dimension, `B` the block. Element counts that do not fill the last block are padded with codes that decode to
zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import QuantizedTensor

Bytes = NDArray[np.uint8]


def nibbles_low_first(codes: NDArray) -> Bytes:
    """Two codes a byte along the last axis, the even one in the low nibble. An odd end is filled with 0."""
    codes = codes.astype(np.uint8, copy=False) & np.uint8(0x0F)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def blocks_last(q: QuantizedTensor, codes: NDArray) -> NDArray:
    """`codes` as [rows, ceil(K / B), B]: the blocked axis moved last and cut into blocks, padded with the zero code."""
    axis, block = q.granularity.axis, q.granularity.block
    assert axis is not None and block is not None
    rows = np.moveaxis(codes, axis, -1)
    k = rows.shape[-1]
    rows = rows.reshape(-1, k)
    missing = -k % block
    if missing:
        rows = np.concatenate([rows, np.repeat(_zero_code(q)[:, -1:], missing, axis=1)], axis=1)
    return rows.reshape(len(rows), -1, block)


def scales_by_row(q: QuantizedTensor) -> NDArray:
    """Scales as [rows, ceil(K / B)], in the order of `blocks_last`."""
    assert q.scales is not None
    return _by_row(q, q.scales)


def zero_points_by_row(q: QuantizedTensor) -> NDArray:
    """Zero points as [rows, ceil(K / B)], in the order of `blocks_last`."""
    assert q.zero_points is not None
    return _by_row(q, q.zero_points)


def _by_row(q: QuantizedTensor, array: NDArray) -> NDArray:
    axis = q.granularity.axis
    assert axis is not None
    rows = np.moveaxis(array, axis, -1)
    return rows.reshape(-1, rows.shape[-1])


def _zero_code(q: QuantizedTensor) -> NDArray:
    """[rows, blocks] of the code that decodes to zero."""
    if q.zero_points is not None:
        return zero_points_by_row(q)
    levels = getattr(q.format, "levels", None)
    zero = 0 if levels is None else int(np.flatnonzero(levels == 0)[0])
    return np.full(scales_by_row(q).shape, zero, q.codes.dtype)


def matmul_nbits(q: QuantizedTensor) -> Bytes:
    """MatMulNBits' B, [N, ceil(K / B), B · bits / 8]: unsigned codes, for 4 bits the even k in the low nibble.

    Source: com.microsoft.MatMulNBits in onnxruntime's ContribOperators.md.
    """
    codes = blocks_last(q, q.codes)
    if codes.dtype == np.int8:
        codes = (codes.astype(np.int16) + (1 << (q.format.bits - 1))).astype(np.uint8)
    return nibbles_low_first(codes) if q.format.bits == 4 else codes


def matmul_nbits_zero_points(q: QuantizedTensor) -> Bytes:
    """MatMulNBits' zero points, [N, ceil(ceil(K / B) · bits / 8)]; the middle code where the format has none."""
    if q.zero_points is None:
        zeros: NDArray = np.full(scales_by_row(q).shape, 1 << (q.format.bits - 1), np.uint8)
    else:
        zeros = zero_points_by_row(q)
    return nibbles_low_first(zeros) if q.format.bits == 4 else zeros


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
    standard operators unpack it with one Concat."""
    codes = blocks_last(q, q.codes)
    codes = codes.reshape(-1, codes.shape[-1]).astype(np.uint8) & np.uint8(0x0F)
    half = codes.shape[1] // 2
    return codes[:, :half] | (codes[:, half:] << np.uint8(4))

"""Codes of a few bits in bytes, the first code in the lowest bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnxq.formats.kinds import arguments
from onnxq.formats.kinds import fast as _fast
from onnxq.layouts._rows import Bytes

#: Codes whose bits are spread out at a time; a multiple of 8, so that every piece ends with a whole byte.
_PIECE = 1 << 20


def low_first(codes: NDArray, bits: int, flip: int = 0) -> Bytes:
    """Codes of 2, 4 or 8 bits along the last axis, the first in the lowest bits. A short end is filled with 0.

    The bits of `flip` are inverted in every byte then: 0x88 adds 8 to codes of 4 bits.

    Returns:
        [..., ceil(K · bits / 8)] of codes [..., K].

    Raises:
        ValueError: another width, or a single code without an axis.
    """
    if bits not in (1, 2, 4, 8) or not codes.ndim:
        raise ValueError(
            f"codes of {bits} bits in {codes.ndim} dimensions do not fill bytes: 1, 2, 4 and 8 do, in rows"
        )
    if bits == 8:
        packed = codes.view(np.uint8) if codes.dtype == np.int8 else codes.astype(np.uint8, copy=False)
        return packed ^ np.uint8(flip) if flip else packed
    if bits == 4 and codes.shape[-1] % 2 == 0:
        fast = _fast.pack_nibbles(codes, high_first=False, flip=flip)
        if fast is not None:
            return fast.reshape(*codes.shape[:-1], codes.shape[-1] // 2)
    each = 8 // bits
    codes = codes.astype(np.uint8, copy=False) & np.uint8((1 << bits) - 1)
    missing = -codes.shape[-1] % each
    if missing:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], missing), np.uint8)], axis=-1)
    packed = codes[..., 0::each].copy()
    for i in range(1, each):
        packed |= codes[..., i::each] << np.uint8(bits * i)
    return packed ^ np.uint8(flip) if flip else packed


def from_low_first(packed: Bytes, bits: int, count: int) -> Bytes:
    """The inverse of `low_first`: the first `count` unsigned codes along the last axis.

    Args:
        packed: bytes, rows along the last axis.
        bits: of a code: 1, 2, 4 or 8.

    Raises:
        ValueError: no bytes, fewer of them than `count` codes take, or another width.
    """
    packed = arguments.raw("codes", packed)
    if bits not in (1, 2, 4, 8) or not packed.ndim:
        raise ValueError(f"bytes in {packed.ndim} dimensions hold no rows of codes of {bits} bits")
    if not 0 <= count <= packed.shape[-1] * (8 // bits):
        raise ValueError(f"{packed.shape[-1]} bytes hold {packed.shape[-1] * (8 // bits)} codes, not {count}")
    if bits == 8:
        return packed[..., :count]
    mask = np.uint8((1 << bits) - 1)
    codes = np.stack([(packed >> np.uint8(shift)) & mask for shift in range(0, 8, bits)], axis=-1)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * (8 // bits))[..., :count]


def nibbles_low_first(codes: NDArray) -> Bytes:
    """Two codes a byte along the last axis, the even one in the low nibble. An odd end is filled with 0."""
    return low_first(codes, 4)


def high_first(codes: NDArray) -> Bytes:
    """All codes of 4 bits, the first of two in the high nibble. An odd end is filled with 0."""
    flat = codes.reshape(-1)
    fast = _fast.pack_nibbles(flat, high_first=True)
    if fast is not None:
        return fast
    flat = flat.astype(np.uint8, copy=False) & np.uint8(15)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return (flat[0::2] << np.uint8(4)) | flat[1::2]


def pack_codes(codes: NDArray, bits: int) -> Bytes:
    """All codes as one stream of `bits` bits each, ceil(size · bits / 8) bytes; negative ones in two's complement.

    For 2 and 4 bits these are the bytes of ONNX's INT2, UINT2, INT4 and UINT4 tensors.

    Raises:
        ValueError: not 1 to 16 bits, or codes of another type than hold so many.
    """
    _require_width(codes.dtype, bits)
    flat = codes.reshape(-1)
    if bits in (2, 4):
        return low_first(flat, bits)
    if bits % 8 == 0:
        return np.ascontiguousarray(flat).view(np.uint8)
    wide = flat.astype(np.uint16, copy=False)
    pieces = [_spread(wide[i : i + _PIECE])[:, :bits] for i in range(0, wide.size, _PIECE)]
    return np.concatenate([np.zeros(0, np.uint8), *(np.packbits(p, bitorder="little") for p in pieces)])


def unpack_codes(packed: Bytes, bits: int, shape: Sequence[int], dtype: DTypeLike) -> NDArray:
    """The inverse of `pack_codes`, codes of `dtype`.

    Args:
        packed: ceil(size · bits / 8) bytes.
        shape: of the codes; `size` is its product.

    Raises:
        ValueError: more or fewer bytes, or a width that `dtype` does not hold.
    """
    dtype, count = np.dtype(dtype), arguments.count(shape)
    _require_width(dtype, bits)
    packed = np.ascontiguousarray(arguments.raw("codes", packed, -(-count * bits // 8))).reshape(-1)
    if bits % 8 == 0:
        return packed.view(dtype).reshape(shape)
    if bits in (2, 4):
        codes = from_low_first(packed, bits, count).astype(np.uint16)
    else:
        spread = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
        codes = spread.astype(np.uint16) @ (1 << np.arange(bits, dtype=np.uint16))
    if dtype.kind == "i":
        half = 1 << (bits - 1)
        return (((codes.astype(np.int32) + half) & (2 * half - 1)) - half).astype(dtype).reshape(shape)
    return codes.astype(dtype).reshape(shape)


def _require_width(dtype: np.dtype, bits: int) -> None:
    room = 8 * dtype.itemsize
    if not 1 <= bits <= 16 or bits > room or (bits % 8 == 0 and bits != room):
        raise ValueError(f"codes of {bits} bits do not come as {dtype}")


def _spread(codes: NDArray[np.uint16]) -> Bytes:
    """[codes, 16] bits, the lowest first."""
    return np.unpackbits(codes.astype("<u2").view(np.uint8).reshape(-1, 2), axis=1, bitorder="little")

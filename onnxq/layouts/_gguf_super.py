"""GGUF tensors of super blocks: 256 weights in one run of bytes, their scales among them.

    Q2_K   scale and minimum:16 × (4 + 4 bits)  codes:64  d:2 dmin:2
    Q3_K   high bits:32  codes:64  scales:12  d:2
    Q4_K   d:2 dmin:2  scales and minima:12  codes:128
    Q5_K   d:2 dmin:2  scales and minima:12  high bits:32  codes:128
    Q6_K   low nibbles:128  high pairs of bits:64  scales:16 × int8  d:2
    TQ1_0  five codes a byte:48  four codes a byte:4  d:2
    TQ2_0  codes:64  d:2

Source: ggml-common.h of ggml and gguf's quants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxq.layouts._rows import Bytes

#: Weights of a super block.
SUPER = 256
#: Of the ternary digits of a byte.
THIRDS = np.array([81, 27, 9, 3, 1], np.uint8)


class Parts(NamedTuple):
    """What n super blocks hold, all of it unsigned.

    Attributes:
        codes: [n, 256].
        scales, minima: [n, blocks] codes; None where there are none.
        factors: [n, 1 or 2] float16: of the scales, and of the minima.
    """

    codes: Bytes
    scales: Bytes | None
    minima: Bytes | None
    factors: NDArray[np.float16]


class Packing(NamedTuple):
    """Bytes of a super block, and both ways between them and its parts, [n, nbytes]."""

    nbytes: int
    pack: Callable[[Parts], Bytes]
    unpack: Callable[[Bytes], Parts]


def _merged(parts: Bytes, width: int) -> Bytes:
    """[…, m] of fields […, 8 / width, m] of `width` bits, the first one lowest."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(parts << shifts, axis=-2)


def _fields(packed: Bytes, width: int) -> Bytes:
    """The inverse of `_merged`."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << width) - 1)


def _pairs(codes: Bytes) -> Bytes:
    """[n, 64] of codes of 2 bits, those 32 apart in one byte."""
    return _merged(codes.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)


def _from_pairs(packed: Bytes) -> Bytes:
    return _fields(packed.reshape(-1, 2, 32), 2).reshape(-1, SUPER)


def _nibbles(codes: Bytes) -> Bytes:
    """[n, 128] of codes of 4 bits, those 32 apart in one byte."""
    return _merged(codes.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)


def _from_nibbles(packed: Bytes) -> Bytes:
    return _fields(packed.reshape(-1, 4, 32), 4).reshape(-1, SUPER)


def _bits(codes: Bytes) -> Bytes:
    """[n, 32] of single bits, those 32 apart in one byte."""
    return _merged(codes.reshape(-1, 8, 32), 1).reshape(-1, 32)


def _from_bits(packed: Bytes) -> Bytes:
    return _fields(packed.reshape(-1, 1, 32), 1).reshape(-1, SUPER)


def _halves(factors: NDArray) -> Bytes:
    return np.ascontiguousarray(factors, "<f2").view(np.uint8)


def _from_halves(raw: Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float16)


def _six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """[n, 12] of 8 scales and 8 minima: the first four of each whole, with the high bits of the last four on top."""
    top = np.uint8(4)
    first = scales[:, :4] | (scales[:, 4:] >> top) << np.uint8(6)
    second = minima[:, :4] | (minima[:, 4:] >> top) << np.uint8(6)
    return np.concatenate([first, second, scales[:, 4:] & np.uint8(15) | minima[:, 4:] << top], axis=1)


def _from_six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    whole, top = np.uint8(63), np.uint8(6)
    scales = np.concatenate([first & whole, (low & np.uint8(15)) | first >> top << np.uint8(4)], axis=1)
    minima = np.concatenate([second & whole, low >> np.uint8(4) | second >> top << np.uint8(4)], axis=1)
    return scales, minima


def _given(array: Bytes | None) -> Bytes:
    assert array is not None
    return array


def _q2_k(p: Parts) -> Bytes:
    both = _given(p.scales) | _given(p.minima) << np.uint8(4)
    return np.concatenate([both, _pairs(p.codes), _halves(p.factors)], axis=1)


def _from_q2_k(raw: Bytes) -> Parts:
    both = raw[:, :16]
    return Parts(_from_pairs(raw[:, 16:80]), both & np.uint8(15), both >> np.uint8(4), _from_halves(raw[:, 80:]))


def _q3_k(p: Parts) -> Bytes:
    scales = _given(p.scales)
    low = _merged((scales & np.uint8(15)).reshape(-1, 2, 8), 4)
    high = _merged((scales >> np.uint8(4)).reshape(-1, 4, 4), 2)
    codes = [_bits(p.codes >> np.uint8(2)), _pairs(p.codes & np.uint8(3))]
    return np.concatenate([*codes, low, high, _halves(p.factors)], axis=1)


def _from_q3_k(raw: Bytes) -> Parts:
    codes = _from_bits(raw[:, :32]) << np.uint8(2) | _from_pairs(raw[:, 32:96])
    low, high = _fields(raw[:, 96:104], 4).reshape(-1, 16), _fields(raw[:, 104:108], 2).reshape(-1, 16)
    return Parts(codes, low | high << np.uint8(4), None, _from_halves(raw[:, 108:]))


def _q4_k(p: Parts) -> Bytes:
    scales = _six_bits(_given(p.scales), _given(p.minima))
    return np.concatenate([_halves(p.factors), scales, _nibbles(p.codes)], axis=1)


def _from_q4_k(raw: Bytes) -> Parts:
    return Parts(_from_nibbles(raw[:, 16:]), *_from_six_bits(raw[:, 4:16]), _from_halves(raw[:, :4]))


def _q5_k(p: Parts) -> Bytes:
    scales = _six_bits(_given(p.scales), _given(p.minima))
    codes = [_bits(p.codes >> np.uint8(4)), _nibbles(p.codes & np.uint8(15))]
    return np.concatenate([_halves(p.factors), scales, *codes], axis=1)


def _from_q5_k(raw: Bytes) -> Parts:
    codes = _from_bits(raw[:, 16:48]) << np.uint8(4) | _from_nibbles(raw[:, 48:])
    return Parts(codes, *_from_six_bits(raw[:, 4:16]), _from_halves(raw[:, :4]))


def _q6_k(p: Parts) -> Bytes:
    low = _merged((p.codes & np.uint8(15)).reshape(-1, 2, 2, 64), 4).reshape(-1, 128)
    scales = _given(p.scales) ^ np.uint8(128)  # two's complement again
    return np.concatenate([low, _pairs(p.codes >> np.uint8(4)), scales, _halves(p.factors)], axis=1)


def _from_q6_k(raw: Bytes) -> Parts:
    low = _fields(raw[:, :128].reshape(-1, 2, 64), 4).reshape(-1, SUPER)
    codes = low | _from_pairs(raw[:, 128:192]) << np.uint8(4)
    return Parts(codes, raw[:, 192:208] ^ np.uint8(128), None, _from_halves(raw[:, 208:]))


def _tq2_0(p: Parts) -> Bytes:
    return np.concatenate([_pairs(p.codes), _halves(p.factors)], axis=1)


def _from_tq2_0(raw: Bytes) -> Parts:
    return Parts(_from_pairs(raw[:, :64]), None, None, _from_halves(raw[:, 64:]))


#: Of TQ1_0: where codes begin, how many go in a byte, and how many bytes follow each other.
_THIRDS = ((0, 5, 32), (160, 5, 16), (240, 4, 4))


def _tq1_0(p: Parts) -> Bytes:
    parts = []
    for start, each, count in _THIRDS:
        digits = p.codes[:, start : start + each * count].reshape(-1, each, count)
        numbers = (digits.astype(np.uint16) * THIRDS[:each, None]).sum(axis=1, dtype=np.uint16)
        # As a fraction of 256, so that multiplying by three brings one digit after the other to the top.
        parts.append(((numbers * np.uint16(256) + np.uint16(242)) // np.uint16(243)).astype(np.uint8))
    return np.concatenate([*parts, _halves(p.factors)], axis=1)


def _from_tq1_0(raw: Bytes) -> Parts:
    codes, at = [], 0
    for _, each, count in _THIRDS:
        moved = raw[:, None, at : at + count] * THIRDS[4 : 4 - each if each < 5 else None : -1, None]
        digits = ((moved.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8)
        codes.append(digits.reshape(len(raw), each * count))  # of no rows, too
        at += count
    return Parts(np.concatenate(codes, axis=1), None, None, _from_halves(raw[:, at:]))


#: By GGUF's name of the format.
PACKINGS = {
    "Q2_K": Packing(84, _q2_k, _from_q2_k),
    "Q3_K": Packing(110, _q3_k, _from_q3_k),
    "Q4_K": Packing(144, _q4_k, _from_q4_k),
    "Q5_K": Packing(176, _q5_k, _from_q5_k),
    "Q6_K": Packing(210, _q6_k, _from_q6_k),
    "TQ1_0": Packing(54, _tq1_0, _from_tq1_0),
    "TQ2_0": Packing(66, _tq2_0, _from_tq2_0),
}

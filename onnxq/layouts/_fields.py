"""Codes of any width in as many bits, in a form that a few standard operators unpack.

A width is a sum of powers of two, and each of those is a field of its own: 5 bits are a field of 4 (the low bits) and
one of 1. Of a row of K codes, filled up to a multiple of 8, a field of f bits takes K · f / 8 bytes, the first code in
the lowest bits; the fields of a row follow each other, low bits first. 3 bits of 8 codes a…h:

    byte 0   d d c c b b a a        bits 0 and 1
    byte 1   h h g g f f e e
    byte 2   h g f e d c b a        bit 2
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.layouts._bits import from_low_first, low_first
from onnxq.layouts._layout import Outline, layout
from onnxq.layouts._plain import exponent_type, exponents
from onnxq.layouts._rows import Bytes

#: Widths that divide a byte, the widest first.
FIELDS = (8, 4, 2, 1)


def fields_of(bits: int) -> list[tuple[int, int]]:
    """(width, lowest bit) of each field of a code.

    Args:
        bits: of a code, 1 to 16.
    """
    found, low = [], 0
    for width in FIELDS:
        while bits - low >= width:
            found.append((width, low))
            low += width
    return found


@layout(np.uint8, lambda w: (w.rows, -(-w.k // 8) * w.format.bits))
def bit_fields(q: QuantizedTensor) -> Bytes:
    """[rows, bytes] of a weight of any granularity (`as_rows`); signed codes are moved up by 2^(bits − 1).

    Raises:
        ValueError: the codes are floating-point numbers.
    """
    bits = q.format.bits
    if q.codes.dtype.kind not in "iu":
        raise ValueError(f"{q.format.name} has codes of type {q.codes.dtype}, which have no fields of bits")
    rows = as_rows(q.codes, q.granularity)
    if np.issubdtype(rows.dtype, np.signedinteger):
        rows = rows.astype(np.int32) + (1 << (bits - 1))
    missing = -rows.shape[1] % 8
    rows = np.pad(rows, [(0, 0), (0, missing)])
    parts = [low_first((rows >> low) & ((1 << width) - 1), width) for width, low in fields_of(bits)]
    return np.concatenate(parts, axis=1)


def from_bit_fields(packed: Bytes, bits: int, k: int) -> NDArray[np.uint16]:
    """[rows, k] codes, none of which is negative, of what `bit_fields` wrote.

    Args:
        packed: [rows, bytes].
        bits: of a code.
        k: codes of a row.

    Raises:
        ValueError: rows are of another length.
    """
    groups, start = -(-k // 8), 0
    if packed.ndim != 2 or packed.shape[1] != groups * bits:
        raise ValueError(f"{k} codes of {bits} bits take {groups * bits} bytes a row, not {packed.shape[1:]}")
    codes = np.zeros((len(packed), groups * 8), np.uint16)
    for width, low in fields_of(bits):
        field = np.ascontiguousarray(packed[:, start : start + groups * width])
        codes |= from_low_first(field, width, groups * 8).astype(np.uint16) << np.uint16(low)
        start += groups * width
    return codes[:, :k]


def as_rows(array: NDArray, granularity: Granularity) -> NDArray:
    """A weight with its blocked axis last, or its channels first, or all of it in one row.

    Args:
        array: of the weight's shape, or of its scales'.
        granularity: which weights share a scale.
    """
    if granularity.axis is None:
        return array.reshape(1, -1)
    if granularity.block is None:
        first = np.moveaxis(array, granularity.axis, 0)
        return first.reshape(len(first), math.prod(first.shape[1:]))
    last = np.moveaxis(array, granularity.axis, -1)
    return last.reshape(math.prod(last.shape[:-1]), last.shape[-1])


def group_rows(groups: NDArray, granularity: Granularity) -> NDArray:
    """Scales or zero points as [rows, blocks], in the order of `as_rows`.

    Args:
        groups: one number for each group.
        granularity: which weights share a scale.
    """
    if granularity.block is None:
        return groups.reshape(-1, 1)
    return as_rows(groups, granularity)


@layout(exponent_type, lambda w: (w.rows, w.blocks))
def group_scales(q: QuantizedTensor) -> NDArray:
    """[rows, blocks]; powers of two of 8 bits (E8M0) as the uint8 of their exponent."""
    return group_rows(exponents(arguments.present(q.scales, "scales")), q.granularity)


@layout(lambda w: w.format.offset_type, lambda w: (w.rows, w.blocks))
def group_offsets(q: QuantizedTensor) -> NDArray:
    """[rows, blocks] zero points or minima, of a format that has them."""
    return group_rows(arguments.present(q.zero_points, "zero points or minima"), q.granularity)


def moved_axes(w: Outline) -> tuple[list[int], list[int]]:
    """(shape of the weight as `as_rows` lays it out, before that makes rows of it; the axes that bring it back).

    Args:
        w: what is known of the weight.
    """
    axes, axis = list(range(len(w.shape))), w.granularity.axis
    if axis is None:
        return list(w.shape), axes
    others = [i for i in axes if i != axis]
    order = [axis, *others] if w.granularity.block is None else [*others, axis]
    return [w.shape[i] for i in order], [order.index(i) for i in axes]

"""The compiled way of encoding weights in blocks, where the library is there.

It does what the formats do in numpy, bit for bit, from any floating-point type, in threads, and without a copy of what
is in order in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.formats import E8M0, Fit, Format, Granularity, QuantizedTensor
from onnxq.runtime import native

_TYPES = {np.dtype(t): i for i, t in enumerate((np.float32, np.float16, ml_dtypes.bfloat16, np.float64))}


def encode(
    format: Format, w: NDArray, granularity: Granularity, tables: Sequence[NDArray] | None = None
) -> QuantizedTensor | None:
    """`w` rounded to nearest, scales as `format.fit` gives them; None where numpy has to do it.

    That is: no library, a format without a rule, no blocks, numbers of another type, or one that is not finite, which
    numpy then finds.

    Args:
        tables: of a codebook, if not the format's own (`_codebook.Tables`).

    Raises:
        BadModel: a scale does not fit the type that the format stores it in.
        ValueError: the weight has no such axis.
    """
    rule, dtype = format.rule, _TYPES.get(w.dtype)
    granularity = granularity.within(w.ndim)
    axis, block = granularity.axis, granularity.block
    if rule is None or dtype is None or axis is None or block is None or not w.size:
        return None
    library = native.library()
    if library is None:
        return None
    w = np.ascontiguousarray(w)
    codes = np.empty(w.shape, format.code_type)
    scales = np.empty(granularity.scale_shape(w.shape), np.float32)
    zeros = np.empty(scales.shape, format.code_type) if rule.fit is Fit.RANGE else None
    tables = tables or format.tables
    if tables is not None and [len(table) for table in tables] != [16, 15, 16]:
        return None
    is_finite = library.onnxq_encode_rows(
        w,
        dtype,
        math.prod(w.shape[:axis]),
        w.shape[axis],
        math.prod(w.shape[axis + 1 :]),
        min(block, w.shape[axis]),
        rule.fit,
        rule.qmax,
        *(None, None) if tables is None else tables[1:],
        codes,
        scales,
        zeros,
        native.threads(),
    )
    if not is_finite:
        return None
    return QuantizedTensor(format, granularity, codes, stored(format, scales), zeros)


def stored(format: Format, d: NDArray) -> NDArray:
    """Scales or minima in the type in which `format` stores them.

    Raises:
        BadModel: one would become infinite.
    """
    assert format.scale_type is not None
    if format.scale_type == E8M0:  # the exponent; that of 2^-127 is 0, as float32 has it subnormal
        return (np.ascontiguousarray(d, np.float32).view(np.uint32) >> 23).astype(np.uint8).view(E8M0)
    with np.errstate(over="ignore"):
        kept = d.astype(format.scale_type, copy=False)
    if format.scale_type == np.float16 and not np.isfinite(kept).all():
        raise BadModel(
            f"a scale or minimum of {float(np.max(np.abs(d))):g} does not fit float16, as {format.name} stores it; "
            "use a format with float32 scales, or keep its node in float (--keep)"
        )
    return kept


def transposed(codes: NDArray) -> NDArray:
    """[columns, rows] of a matrix, in order in memory.

    Raises:
        ValueError: it is none.
    """
    if codes.ndim != 2:
        raise ValueError(f"an array of {codes.ndim} dimensions is no matrix")
    library = native.library()
    if library is None or codes.itemsize != 1 or not codes.flags.c_contiguous:
        return np.ascontiguousarray(codes.T)
    turned = np.empty(codes.shape[::-1], codes.dtype)
    library.onnxq_transpose(codes, *codes.shape, turned, native.threads())
    return turned


def pack_nibbles(codes: NDArray, high_first: bool, flip: int = 0) -> NDArray[np.uint8] | None:
    """Codes of one byte each as two a byte, the bits of `flip` inverted.

    None where numpy has to do it: no library, an odd number of codes, or not in order in memory.
    """
    library = native.library()
    if library is None or codes.size % 2 or codes.itemsize != 1 or not codes.flags.c_contiguous:
        return None
    packed = np.empty(codes.size // 2, np.uint8)
    library.onnxq_pack_nibbles(codes, packed.size, high_first, flip, packed, native.threads())
    return packed

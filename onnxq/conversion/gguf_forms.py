"""Which of GGUF's types holds a weight as it is, or as nearly as one can.

Whole numbers, less their zero point, are codes of the shortest symmetric type that reaches so far: blocks of 32 weights
with a float16 scale hold -8…7, -16…15 or -128…127, blocks of 256 hold -1, 0 and 1. Scales of longer groups, of rows or
of the tensor are repeated. Only a scale that float16 does not hold is rounded.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints.encode_arrays import Tensor
from onnxq.checkpoints.gguf_file import ARRAYS, MOST_AXES
from onnxq.encoding.lazy import in_blocks
from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.layouts import gguf_block
from onnxq.quality import sqnr

#: Symmetric types, the shortest first, and the codes that they hold.
_SYMMETRIC = (("tq2_0", -1, 1), ("q4_0", -8, 7), ("q5_0", -16, 15), ("q8_0", -128, 127))
#: Rounding scales may cost so much before whole weights in float16 are the better trade-off, in dB.
_LEAST = 60.0
_LARGEST = float(np.finfo(np.float16).max)


def in_gguf(tensor: Tensor) -> Tensor:
    """The same in a form that GGUF has: the same codes, if it can be, else float16.

    Args:
        tensor: a weight, whose blocks in GGUF lie along the last axis, or a plain array.
    """
    if not isinstance(tensor, QuantizedTensor):
        known = tensor.dtype in ARRAYS
        array = tensor if known else tensor.astype(np.int64 if tensor.dtype.kind in "iu" else np.float32)
        return array.reshape(-1) if array.ndim > MOST_AXES else array
    if tensor.format.gguf and tensor.format.scale_type is None:
        return tensor
    made = _own_blocks(tensor) if tensor.format.gguf else None
    made = _integers(tensor) if made is None else made
    if made is not None:
        return made
    dtype = np.dtype(ml_dtypes.bfloat16) if tensor.format.name == "bfloat16" else np.dtype(np.float16)
    return tensor.dequantize(dtype)


def distance(before: Tensor, after: Tensor) -> float | None:
    """SQNR in dB; None: equal."""
    a, b = (_floats(tensor).reshape(-1) for tensor in (before, after))
    if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return None
    return sqnr(a, b)


def _integers(q: QuantizedTensor) -> QuantizedTensor | None:
    """Whole numbers in the shortest type that holds them; None where none does."""
    if q.scales is None or q.format.has_minimum:
        return None
    if not q.format.is_integer or q.format.bits > 8:
        return None
    codes = q.codes.astype(np.int16)
    if q.zero_points is not None:
        codes = codes - q.granularity.spread(q.zero_points.astype(np.int16), q.shape)
    low, high = (int(code) for code in (codes.min(initial=0), codes.max(initial=0)))
    for word, least, most in _SYMMETRIC:
        found = formats.get(word)
        block = gguf_block(found)
        if least <= low and high <= most and _fits(q, block):
            plain = QuantizedTensor(found, q.granularity, codes.astype(np.int8), q.scales)
            return _with_half_scales(in_blocks(plain, Granularity(len(q.shape) - 1, block)), found, q)
    return None


def _with_half_scales(made: QuantizedTensor, found: Format, q: QuantizedTensor) -> QuantizedTensor | None:
    assert made.scales is not None
    wide = made.scales.astype(np.float32)
    if float(np.abs(wide).max(initial=0)) > _LARGEST:
        return None
    done = QuantizedTensor(found, made.granularity, made.codes, wide.astype(np.float16))
    if np.array_equal(done.scales.astype(np.float32), wide):  # type: ignore[union-attr]
        return done
    lost = distance(q, done)
    return done if lost is None or lost >= _LEAST else None


def _fits(q: QuantizedTensor, block: int) -> bool:
    """Whether blocks of that size along the last axis each lie in one group of the weight."""
    how, last = q.granularity, len(q.shape) - 1
    if last < 1 or q.shape[last] % block:
        return False
    if how.block is None:
        return how.axis is None or how.axis != last
    return how.axis == last and (how.block % block == 0 or how.block >= q.shape[last])


def _own_blocks(q: QuantizedTensor) -> QuantizedTensor | None:
    """A weight of one of GGUF's formats, in blocks of that size."""
    block, last = q.format.default_block, len(q.shape) - 1
    if block is None or (not _fits(q, gguf_block(q.format)) and q.granularity != Granularity(last, block)):
        return None
    if q.shape[last] % gguf_block(q.format):
        return None
    if q.granularity == Granularity(last, block):
        return q
    return None if q.nested is not None else in_blocks(q, Granularity(last, block))


def _floats(tensor: Tensor) -> NDArray:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor

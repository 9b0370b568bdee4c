"""The error of one weight in one format."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from onnxq import formats
from onnxq.analysis.slices import slices
from onnxq.analysis.statistics import ErrorStats, ErrorSums
from onnxq.encoding import lazy, memo
from onnxq.encoding.lazy import Encoding
from onnxq.formats import Format, Granularity
from onnxq.formats.kinds import arguments


def tensor_error(
    w: ArrayLike | ir.TensorProtocol,
    format: str | Format,
    granularity: Granularity | None = None,
    algorithm: str = "rtn",
) -> ErrorStats:
    """The error of weight `w` in `format`.

    Args:
        w: any shape and float type; an array, nested lists, or an ONNX tensor, which may lie on disk and larger than
            memory.
        granularity: which weights share a scale; one for the whole tensor if None.
        algorithm: a word of `algorithms.DATA_FREE`; `rtn` is the format's own rounding.

    Raises:
        BadModel: a weight is not finite, or does not fit the format.
        BadRecipe: no such format or algorithm.
        ValueError: `w` is no array of real numbers, or has no such axis.
    """
    chosen = formats.get(format) if isinstance(format, str) else format
    tensor = w if isinstance(w, ir.TensorProtocol) else ir.tensor(arguments.numbers(w), name="w")
    stats = sum_errors(tensor, chosen, granularity or Granularity(), algorithm).stats()
    memo.forget()
    return stats


def sum_errors(w: ir.TensorProtocol, format: Format, granularity: Granularity, algorithm: str = "rtn") -> ErrorSums:
    """What `tensor_error` makes its figures of, to be merged with the sums of other weights.

    The encoding is remembered: `quantized` is often asked for next.
    """
    sums = ErrorSums()
    q = Encoding(w, format, granularity, algorithm=algorithm).result()
    sums.add_quantized(w.numpy(), q)
    lazy.release(w)
    return sums


def quantized(w: ir.TensorProtocol, format: Format, granularity: Granularity, algorithm: str = "rtn") -> NDArray:
    """The whole weight, rounded to the format and back: its own shape and type."""
    q = Encoding(w, format, granularity, algorithm=algorithm).result()
    out = np.empty(q.shape, w.dtype.numpy())
    for index, part in slices(q):
        out[index] = part.dequantize()
    return out

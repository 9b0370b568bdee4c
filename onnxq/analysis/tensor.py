"""The error of one weight in one format, in memory that does not grow with the weight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms, encoding, formats
from onnxq.analysis.statistics import ErrorStats, ErrorSums
from onnxq.errors import BadModel
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor


def tensor_error(
    w: NDArray | ir.TensorProtocol, format: Format | str, granularity: Granularity | None = None, algorithm: str = "rtn"
) -> ErrorStats:
    """The error of weight `w` in `format`.

    Args:
        w: any shape and float type; an array or an ONNX tensor, which may lie on disk.
        granularity: which weights share a scale; one for the whole tensor if None.
        algorithm: a word of `algorithms.DATA_FREE`; `rtn` is the format's own rounding.

    Raises:
        BadModel: a weight is not finite, or does not fit the format.
        BadRecipe: no such format.
    """
    chosen = formats.get(format) if isinstance(format, str) else format
    return sum_errors(w, chosen, granularity or Granularity(), algorithm).stats()


def sum_errors(
    w: NDArray | ir.TensorProtocol, format: Format, granularity: Granularity, algorithm: str = "rtn"
) -> ErrorSums:
    """What `tensor_error` makes its figures of, to be merged with the sums of other weights."""
    sums = ErrorSums()
    for x, q in pieces(w, format, granularity, algorithm):
        sums.add_quantized(x, q)
    return sums


def quantized(w: ir.TensorProtocol, format: Format, granularity: Granularity, algorithm: str = "rtn") -> NDArray:
    """The whole weight, rounded to the format and back: its own shape and type."""
    out = np.empty(tuple(w.shape.numpy()), w.dtype.numpy())
    start = 0
    axis, _ = _cut(out.shape, granularity)
    for x, q in pieces(w, format, granularity, algorithm):
        end = start + x.shape[axis]
        out[(slice(None),) * axis + (slice(start, end),)] = q.dequantize()
        start = end
    return out


def pieces(
    w: NDArray | ir.TensorProtocol, format: Format, granularity: Granularity, algorithm: str = "rtn"
) -> Iterator[tuple[FloatArray, QuantizedTensor]]:
    """Pieces of the weight as float32, of some millions of numbers at most, each with what becomes of it.

    No piece cuts a group. A scale of the whole tensor is found first, for which all of it is read once.
    """
    quantize = algorithms.DATA_FREE[algorithm]
    name = (w.name or "") if isinstance(w, ir.TensorProtocol) else ""
    array = w.numpy() if isinstance(w, ir.TensorProtocol) else np.asarray(w)
    scales: FloatArray | None = None
    zero_points: CodeArray | None = None
    axis, step = _cut(array.shape, granularity)
    if granularity.axis is None and step < (array.shape[axis] if array.ndim else 1):
        whole = _finite(array, name, 0, 0)
        if algorithm == "rtn":
            scales, zero_points = format.fit(whole, granularity)
        else:
            q = quantize(whole, format, granularity)
            scales, zero_points = q.scales, q.zero_points
            quantize = algorithms.DATA_FREE["rtn"]
        del whole
    if not array.ndim:
        array = array.reshape(1)
    for start in range(0, array.shape[axis], step) if array.size else ():
        part = array[(slice(None),) * axis + (slice(start, start + step),)]
        x = _finite(part, name, axis, start)
        yield x, quantize(x, format, granularity, scales, zero_points)
    if isinstance(w, ir.TensorProtocol):
        del array
        encoding.release(w)


def _cut(shape: tuple[int, ...], granularity: Granularity) -> tuple[int, int]:
    """The axis along which the weight is cut, and the size of a piece there: whole groups only."""
    size = int(np.prod(shape, dtype=np.int64))
    if size <= encoding.SLICE_ELEMENTS:
        return 0, max(1, shape[0] if shape else 1)
    if granularity.axis is not None and granularity.block is None:
        axis, unit = granularity.axis, 1
    else:
        axis = max((i for i in range(len(shape)) if i != granularity.axis), key=lambda i: shape[i], default=0)
        unit = granularity.block or 1 if axis == granularity.axis else 1
    step = encoding.SLICE_ELEMENTS // (size // shape[axis])
    return axis, max(unit, step // unit * unit)


def _finite(part: NDArray, name: str, axis: int, start: int) -> FloatArray:
    """`part` as float32; refused if it holds anything that is not a finite float32 number."""
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(part, dtype=np.float32)
    if not np.isfinite(x).all():
        index = [int(i) for i in np.argwhere(~np.isfinite(x))[0]]
        value = part[tuple(index)]
        if index:
            index[axis] += start
        called = f"weight '{name}'" if name else "the weight"
        raise BadModel(f"{called} holds {value} at {index}, which no number format represents; repair the model")
    return x

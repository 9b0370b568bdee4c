"""A weight on its way into a format: computed when first read, a slice at a time, and soon forgotten.

Every initializer the passes create is an `onnx_ir.LazyTensor` over an `Encoding`, so that nothing is packed before
the file is written and only one weight is in memory at a time. The parts of one weight (codes, scales, zero points)
are written one after the other; the last encoding is remembered, so that they cost one computation together.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms, formats, layouts
from onnxq.errors import BadModel
from onnxq.formats import FloatArray, Format, Granularity, QuantizedTensor
from onnxq.layouts import Layout, Outline

#: Elements converted to float32 and encoded at a time; bounds the temporary memory to some tens of megabytes.
SLICE_ELEMENTS = 1 << 22
#: What encodings may take that are kept for the next plan.
REMEMBERED_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a weight will be: `tensor` in `format`.

    Attributes:
        least_scales: a lower bound for each scale, for the rare channel whose bias would not fit int32 otherwise.
        stretch: factor on all scales; above 1 it leaves the outermost codes unused.
        algorithm: a word of `algorithms.DATA_FREE`.
        half_scales: round the scales to float16 and choose the codes for the rounded ones.
        given: the result itself, where it is not to be computed.
    """

    tensor: ir.TensorProtocol
    format: Format
    granularity: Granularity
    least_scales: Callable[[], FloatArray] | None = None
    stretch: float = 1.0
    algorithm: str = "rtn"
    half_scales: bool = False
    given: Callable[[], QuantizedTensor] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape.numpy())

    @property
    def scale_shape(self) -> tuple[int, ...]:
        return self.granularity.scale_shape(self.shape)

    def result(self) -> QuantizedTensor:
        """The quantized weight, computed anew unless it was the last one asked for."""
        return _last(self)

    @property
    def outline(self) -> Outline:
        """What is known of the result before it is computed."""
        scale_type = np.dtype(np.float16) if self.half_scales else self.format.scale_type
        return Outline(self.format, self.granularity, self.shape, scale_type)

    def part(self, layout: Layout, dtype: ir.DataType | None = None) -> ir.LazyTensor:
        """An initializer that holds the result in this layout; scales in the type that an operator wants, if named."""
        form = layout.form(self.outline)
        written, shape = dtype or ir.DataType.from_numpy(form.dtype), ir.Shape(form.shape)

        def evaluate() -> ir.TensorProtocol:
            array = np.ascontiguousarray(layout(self.result()))
            if written.bitwidth < 8:
                return ir.PackedTensor(layouts.low_first(array.reshape(-1), written.bitwidth), written, shape=shape)
            return ir.tensor(array.reshape(form.shape).astype(written.numpy(), copy=False))

        return ir.LazyTensor(evaluate, dtype=written, shape=shape)


class GivenTensor(ir.LazyTensor):
    """A float weight that was quantized elsewhere: read as floats it is decoded, encoded again it is what it was."""

    def __init__(
        self, given: Callable[[], QuantizedTensor], shape: tuple[int, ...], dtype: ir.DataType, *, half_scales: bool
    ) -> None:
        def decoded() -> ir.TensorProtocol:
            return ir.tensor(given().dequantize().astype(dtype.numpy()))

        super().__init__(decoded, dtype=dtype, shape=ir.Shape(shape))
        self.given, self.half_scales = given, half_scales


class Memory:
    """Encodings of the same weights for many plans, each computed once; beyond so many bytes the oldest leave."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes, self.computed = limit, 0, 0
        self._fits: dict[Hashable, tuple[ir.TensorProtocol, bool]] = {}
        # The tensor is held too: its identity is part of the key.
        self._found: OrderedDict[Hashable, tuple[ir.TensorProtocol, QuantizedTensor]] = OrderedDict()

    def result(self, encoding: Encoding) -> QuantizedTensor:
        key = _key(encoding)
        if key not in self._found:
            self.computed += 1
            found = _encode(encoding)
            if _nbytes(found) > self.limit:
                return found
            self._found[key] = encoding.tensor, found
            self.nbytes += _nbytes(found)
            while self.nbytes > self.limit:
                self.nbytes -= _nbytes(self._found.popitem(last=False)[1][1])
            return found
        self._found.move_to_end(key)
        return self._found[key][1]

    def fits_half_scales(self, encoding: Encoding) -> bool:
        key = _key(encoding)
        if key not in self._fits:
            self._fits[key] = encoding.tensor, _scales_fit_half(encoding)
        return self._fits[key][1]


_memory: Memory | None = None


@contextlib.contextmanager
def remembering(limit: int = REMEMBERED_BYTES) -> Iterator[Memory]:
    """Within, no weight is encoded twice in the same way, as far as `limit` bytes hold what was made of the others."""
    global _memory
    before, _memory = _memory, Memory(limit)
    try:
        yield _memory
    finally:
        _memory = before
        forget()


def _key(encoding: Encoding) -> Hashable:
    least = None if encoding.least_scales is None else encoding.least_scales().tobytes()
    how = (encoding.format.name, encoding.granularity, encoding.algorithm, encoding.half_scales, encoding.stretch)
    return id(encoding.tensor), how, least


def _nbytes(q: QuantizedTensor) -> int:
    return sum(part.nbytes for part in (q.codes, q.scales, q.zero_points) if part is not None)


@functools.lru_cache(maxsize=1)
def _last(encoding: Encoding) -> QuantizedTensor:
    if _memory is None or encoding.given is not None:
        return _encode(encoding)
    return _memory.result(encoding)


def forget() -> None:
    """Drop the remembered encoding."""
    _last.cache_clear()


def release(tensor: ir.TensorProtocol) -> None:
    """Unmap an external tensor, unless somebody still looks at it: its pages count as this process's memory."""
    if isinstance(tensor, ir.ExternalTensor):
        with contextlib.suppress(BufferError):
            tensor.release()


def _encode(encoding: Encoding) -> QuantizedTensor:
    if encoding.given is not None:
        return encoding.given()
    base = encoding.format.base
    if base is not None:  # all blocks first, then their scales together
        return encoding.format.nest(_encode(replace(encoding, format=base, half_scales=False)))
    axis = _slicing_axis(encoding)
    try:
        if axis is None:
            q = _encode_slice(encoding, encoding.tensor.numpy())
        else:
            q = _join(encoding, axis, list(_slices(encoding, axis)))
    except BadModel as error:
        raise formats.in_weight(error, encoding.tensor.name or "") from None
    release(encoding.tensor)
    return q


def _slices(encoding: Encoding, axis: int) -> Iterator[QuantizedTensor]:
    w = encoding.tensor.numpy()
    for start, piece in _pieces(w, axis):
        yield _encode_slice(encoding, piece, axis, start)


def _pieces(w: NDArray, axis: int) -> Iterator[tuple[int, NDArray]]:
    """(index along `axis`, part of `w` from there on)."""
    step = max(1, SLICE_ELEMENTS // max(1, w.size // w.shape[axis]))
    for start in range(0, w.shape[axis], step):
        yield start, w[(slice(None),) * axis + (slice(start, start + step),)]


def fits_half_scales(encoding: Encoding) -> bool:
    """Whether float16 holds every scale of float32 as a normal number, even after an algorithm has moved it by a third.

    Reads the whole weight.
    """
    if encoding.format.scale_type != np.float32:
        return False
    return _scales_fit_half(encoding) if _memory is None else _memory.fits_half_scales(encoding)


def _scales_fit_half(encoding: Encoding) -> bool:
    axis = _slicing_axis(encoding)
    w = encoding.tensor.numpy()
    fits = all(_fits_half(encoding, piece) for _, piece in (_pieces(w, axis) if axis is not None else [(0, w)]))
    release(encoding.tensor)
    return fits


def _fits_half(encoding: Encoding, piece: NDArray) -> bool:
    half = np.finfo(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):  # weights that are not finite are refused when they are encoded
        scales, _ = encoding.format.fit(np.ascontiguousarray(piece, dtype=np.float32), encoding.granularity)
    magnitudes = np.abs(scales if scales is not None else np.zeros(1))
    magnitudes = magnitudes[magnitudes != 0]
    return bool(np.all((magnitudes >= 1.5 * float(half.tiny)) & (magnitudes <= float(half.max) / 1.5)))


def _join(encoding: Encoding, axis: int, pieces: list[QuantizedTensor]) -> QuantizedTensor:
    """The quantized weight whose slices along `axis` these are."""
    # The scales of a per-channel weight have one axis only: the one that was cut.
    scale_axis = axis if encoding.granularity.block is not None else 0
    scales = [piece.scales for piece in pieces if piece.scales is not None]
    zeros = [piece.zero_points for piece in pieces if piece.zero_points is not None]
    return QuantizedTensor(
        encoding.format,
        encoding.granularity,
        np.concatenate([piece.codes for piece in pieces], axis=axis),
        np.concatenate(scales, axis=scale_axis) if scales else None,
        np.concatenate(zeros, axis=scale_axis) if zeros else None,
    )


def _slicing_axis(encoding: Encoding) -> int | None:
    """The axis along which the weight can be cut without cutting a group, or None to take it whole."""
    shape, granularity = encoding.shape, encoding.granularity
    if math.prod(shape) <= SLICE_ELEMENTS or encoding.least_scales is not None:
        return None
    if granularity.axis is None:
        return 0 if encoding.format.scale_type is None else None
    if granularity.block is None:
        return granularity.axis
    free = [axis for axis in range(len(shape)) if axis != granularity.axis]
    return max(free, key=lambda axis: shape[axis]) if free else None


def _encode_slice(encoding: Encoding, w: NDArray, axis: int = 0, start: int = 0) -> QuantizedTensor:
    """The part `w` of the weight, which begins at `start` of `axis`."""
    if encoding.algorithm == "rtn" and encoding.least_scales is None and encoding.stretch == 1.0:
        return formats.encode(encoding.format, w, encoding.granularity, encoding.tensor.name or "", axis, start)
    x = formats.as_float32(w, encoding.tensor.name or "", axis, start)
    quantize = algorithms.DATA_FREE[encoding.algorithm]
    if encoding.half_scales:
        q = quantize(x, encoding.format, encoding.granularity)
        assert q.scales is not None
        rounded = q.scales.astype(np.float16).astype(np.float32)
        return encoding.format.encode(x, encoding.granularity, rounded, q.zero_points)
    if encoding.least_scales is None and encoding.stretch == 1.0:
        return quantize(x, encoding.format, encoding.granularity)
    scales, zero_points = encoding.format.fit(x, encoding.granularity)
    assert scales is not None
    scales = scales * np.float32(encoding.stretch)
    if encoding.least_scales is not None:
        # A group of zeros has an arbitrary scale of 1; its bias deserves a finer one.
        empty = np.max(np.abs(x), axis=encoding.granularity.groups(x)[1], initial=0) == 0
        least = encoding.least_scales()
        finer = np.where(least > 0, least * np.float32(1024), scales)
        scales = np.where(empty, finer, np.maximum(scales, least)).astype(np.float32)
    return quantize(x, encoding.format, encoding.granularity, scales, zero_points)

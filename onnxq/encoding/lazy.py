"""A weight on its way into a format: computed when first read, a slice at a time.

Every initializer the passes create is an `onnx_ir.LazyTensor` over an `Encoding`, so that nothing is packed before
the file is written and only one weight is in memory at a time. What was computed is remembered in `memo.py`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms, formats, layouts
from onnxq.encoding import memo
from onnxq.errors import BadModel
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds.affine import in_half_scales
from onnxq.formats.kinds.super_blocks import StoredScales
from onnxq.layouts import Layout, Outline
from onnxq.summaries.evidence import Layer

#: Elements converted to float32 and encoded at a time; bounds the temporary memory to some tens of megabytes.
SLICE_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a weight will be: `tensor` in `format`.

    Attributes:
        least_scales: a lower bound for each scale, for the rare channel whose bias would not fit int32 otherwise.
        stretch: factor on all scales; above 1 it leaves the outermost codes unused.
        algorithm: a word of `algorithms.WORDS`.
        layer: what data say of the weight's layer, for an algorithm that needs it.
        half_scales: round the scales to float16 and choose the codes for the rounded ones.
        given: the result itself, where it is not to be computed.
        groups: whose scale each block of `granularity` repeats, for kernels that know blocks only; None: its own.
        by: scales, and zero points or minima, to encode by; None: those that the algorithm finds.
        is_turned: `tensor` has the axes of the weight, a matrix, exchanged, be it flat.

    Raises:
        BadRecipe: there is no such algorithm.
        ValueError: the weight has no such axis.
    """

    tensor: ir.TensorProtocol
    format: Format
    granularity: Granularity
    least_scales: Callable[[], FloatArray] | None = None
    stretch: float = 1.0
    algorithm: str = "rtn"
    half_scales: bool = False
    given: Callable[[], QuantizedTensor] | None = None
    layer: Layer | None = None
    groups: Granularity | None = None
    by: tuple[ScaleArray, CodeArray | None] | None = None
    is_turned: bool = False

    def __post_init__(self) -> None:
        if self.layer is None:
            algorithms.get(self.algorithm)
        object.__setattr__(self, "granularity", self.granularity.within(len(self.tensor.shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape.numpy())

    @property
    def scale_shape(self) -> tuple[int, ...]:
        return self.granularity.scale_shape(self.shape)

    def result(self) -> QuantizedTensor:
        """The quantized weight, computed unless it is remembered (`memo.py`)."""
        if self.least_scales is not None:
            own = replace(self, least_scales=None).result()
            if _are_large_enough(own, self.least_scales()):
                return own
        return memo.current().result(key_of(self), (self.tensor, self.given), lambda: _encode(self))

    @property
    def outline(self) -> Outline:
        """What is known of the result before it is computed."""
        scale_type = np.dtype(np.float16) if self.half_scales else self.format.scale_type
        return Outline(self.format, self.granularity, self.shape, scale_type)

    def part(self, layout: Layout, dtype: ir.DataType | None = None) -> EncodedTensor:
        """An initializer that holds the result in this layout; scales in the type that an operator wants, if named."""
        form = layout.form(self.outline)
        written, shape = dtype or ir.DataType.from_numpy(form.dtype), ir.Shape(form.shape)

        def evaluate() -> ir.TensorProtocol:
            array = np.ascontiguousarray(layout(self.result()))
            if written.bitwidth < 8:
                return ir.PackedTensor(layouts.low_first(array.reshape(-1), written.bitwidth), written, shape=shape)
            return ir.tensor(array.reshape(form.shape).astype(written.numpy(), copy=False))

        return EncodedTensor(self, evaluate, written, shape, layout)


class EncodedTensor(ir.LazyTensor):
    """A part of an encoded weight: codes, scales, zero points."""

    def __init__(
        self,
        encoding: Encoding,
        evaluate: Callable[[], ir.TensorProtocol],
        dtype: ir.DataType,
        shape: ir.Shape,
        layout: Layout,
    ) -> None:
        super().__init__(evaluate, dtype=dtype, shape=shape)
        self.encoding, self.layout = encoding, layout


class GivenTensor(ir.LazyTensor):
    """A float weight that was quantized elsewhere: read as floats it is decoded, encoded again it is what it was.

    Args:
        form: its format and which weights share a scale, where that is known before it is read.
        beside: what is added to the codes, by two thin matrices beside them; it is part of the floats.
    """

    def __init__(
        self,
        given: Callable[[], QuantizedTensor],
        shape: tuple[int, ...],
        dtype: ir.DataType,
        *,
        half_scales: bool,
        form: tuple[Format, Granularity] | None = None,
        beside: FloatArray | None = None,
    ) -> None:
        def decoded() -> ir.TensorProtocol:
            x = given().dequantize() if beside is None else given().dequantize() + beside
            return ir.tensor(np.ascontiguousarray(x.astype(dtype.numpy(), copy=False)))

        super().__init__(decoded, dtype=dtype, shape=ir.Shape(shape))
        self.given, self.half_scales, self.form, self.beside = given, half_scales, form, beside

    def turned(self) -> GivenTensor:
        """The transpose of a matrix."""
        shape, beside = tuple(self.shape.numpy())[::-1], None if self.beside is None else self.beside.T
        return GivenTensor(lambda: turned(self.given()), shape, self.dtype, half_scales=self.half_scales, beside=beside)


class FlatGivenTensor(ir.LazyTensor):
    """As `GivenTensor`, of a weight whose codes are those of its numbers, or of its transpose's, in another shape.

    Args:
        given: the codes, in the shape that a pass gives the weight (`model.graph.flattened`).
        is_turned: they are those of the transpose.
        beside: as of `GivenTensor`, of the weight's own shape.
    """

    def __init__(
        self,
        given: Callable[[], QuantizedTensor],
        shape: tuple[int, ...],
        dtype: ir.DataType,
        *,
        is_turned: bool,
        half_scales: bool,
        beside: FloatArray | None = None,
    ) -> None:
        def decoded() -> ir.TensorProtocol:
            x = unflattened(given().dequantize(), shape, is_turned=is_turned)
            x = x if beside is None else x + beside
            return ir.tensor(np.ascontiguousarray(x.astype(dtype.numpy(), copy=False)))

        super().__init__(decoded, dtype=dtype, shape=ir.Shape(shape))
        self.given, self.is_turned, self.half_scales, self.beside = given, is_turned, half_scales, beside

    def flat(self, shape: tuple[int, ...]) -> GivenTensor:
        """The codes as they are, of a weight in their shape."""
        beside = self.beside
        if beside is not None:
            beside = (beside.T if self.is_turned else beside).reshape(shape)
        return GivenTensor(self.given, shape, self.dtype, half_scales=self.half_scales, beside=beside)


def unflattened(x: FloatArray, shape: tuple[int, ...], *, is_turned: bool) -> FloatArray:
    """Numbers of a weight, or of its transpose, in the weight's own shape."""
    return x.reshape(shape[::-1]).T if is_turned else x.reshape(shape)


def turned(q: QuantizedTensor) -> QuantizedTensor:
    """A matrix with its axes exchanged."""
    return transposed(q, (1, 0))


def transposed(q: QuantizedTensor, order: Sequence[int]) -> QuantizedTensor:
    """A weight with its axes in another order.

    Args:
        order: for each axis of the result the one that it was.
    """
    how, nested = q.granularity, q.nested
    axis = None if how.axis is None else list(order).index(how.axis)
    if len(order) != 2:
        nested = None
    elif isinstance(nested, StoredScales):  # others are counted by rows, which of a matrix are the same either way
        minima = None if nested.minima is None else transposed(nested.minima, order)
        nested = StoredScales(transposed(nested.scales, order), minima)
    scales, zeros = (x if x is None or how.block is None else x.transpose(order) for x in (q.scales, q.zero_points))
    return QuantizedTensor(q.format, replace(how, axis=axis), q.codes.transpose(order), scales, zeros, nested)


def key_of(encoding: Encoding) -> Hashable:
    """The same for encodings with the same result."""
    least = None if encoding.least_scales is None else encoding.least_scales().tobytes()
    given = None if encoding.given is None else id(encoding.given)
    how = (encoding.format.name, encoding.granularity, encoding.algorithm, encoding.half_scales, encoding.stretch)
    return memo.identity(encoding.tensor), how, least, given, encoding.layer, encoding.groups


def _are_large_enough(q: QuantizedTensor, least: FloatArray) -> bool:
    """Whether the scales that a weight has by itself are what it gets where scales must be so large."""
    if q.scales is None or q.zero_points is not None or (q.scales < least).any():
        return False
    is_empty = ~np.any(q.codes, axis=q.granularity.groups(q.codes)[1])  # groups of zeros get another scale
    return not (is_empty & (least > 0)).any()


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
        plain = replace(encoding, format=base, half_scales=False)
        return encoding.format.nest(_encode(plain), lambda *by: _encode(_by(plain, *by)))
    if encoding.groups is not None:
        return in_blocks(_encode(_of_groups(encoding)), encoding.granularity)
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


def _by(encoding: Encoding, scales: ScaleArray, zero_points: CodeArray | None) -> Encoding:
    """The same with scales that are given; without data the codes are the nearest then."""
    algorithm = "rtn" if encoding.layer is None else encoding.algorithm
    return replace(encoding, by=(scales, zero_points), algorithm=algorithm)


def _of_groups(encoding: Encoding) -> Encoding:
    """The same with one scale for each group."""
    return replace(encoding, granularity=encoding.groups or encoding.granularity, groups=None)


def in_blocks(q: QuantizedTensor, granularity: Granularity) -> QuantizedTensor:
    """The same weight, each block of `granularity` with the scale and zero point of the group that it lies in.

    Args:
        granularity: blocks of which as many as make up a group have its scale.
    """
    shape, axis, block = granularity.scale_shape(q.shape), granularity.axis, granularity.block
    assert axis is not None and block is not None

    def repeated(array: NDArray | None) -> NDArray | None:
        if array is None:
            return None
        every = np.broadcast_to(q.granularity.spread(array, q.shape), q.shape)
        return np.ascontiguousarray(np.broadcast_to(every[(slice(None),) * axis + (slice(None, None, block),)], shape))

    return QuantizedTensor(q.format, granularity, q.codes, repeated(q.scales), repeated(q.zero_points))


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
    encoding = _of_groups(encoding)
    return memo.current().answer(key_of(encoding), encoding.tensor, lambda: _scales_fit_half(encoding))


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
    layer = encoding.layer
    if layer is not None and (granularity.axis is None or layer.groups > 1):
        return None
    if layer is not None and granularity.block is not None and granularity.axis != layer.channel:
        return layer.channel
    if granularity.axis is None:
        return 0 if encoding.format.scale_type is None else None
    if granularity.block is None:
        return granularity.axis
    free = [axis for axis in range(len(shape)) if axis != granularity.axis]
    return max(free, key=lambda axis: shape[axis]) if free else None


def _part_of(encoding: Encoding, scales: NDArray, axis: int, part: slice) -> NDArray:
    """The scales of a part of the weight."""
    if encoding.granularity.block is None:
        return scales[part] if encoding.granularity.axis == axis and scales.ndim else scales
    return scales[(slice(None),) * axis + (part,)]


def _algorithm(encoding: Encoding) -> algorithms.Algorithm:
    if encoding.layer is None:
        return algorithms.get(encoding.algorithm)
    with_data = algorithms.WITH_DATA[encoding.algorithm]
    return functools.partial(with_data, layer=encoding.layer, half_scales=encoding.half_scales)


def _encode_slice(encoding: Encoding, w: NDArray, axis: int = 0, start: int = 0) -> QuantizedTensor:
    """The part `w` of the weight, which begins at `start` of `axis`."""
    if encoding.by is not None:
        x = formats.as_float32(w, encoding.tensor.name or "", axis, start)
        part = slice(start, start + w.shape[axis]) if w.ndim else slice(None)
        by = (None if a is None else _part_of(encoding, a, axis, part) for a in encoding.by)
        return _algorithm(encoding)(x, encoding.format, encoding.granularity, *by)
    if encoding.algorithm == "rtn" and encoding.least_scales is None and encoding.stretch == 1.0:
        return formats.encode(encoding.format, w, encoding.granularity, encoding.tensor.name or "", axis, start)
    x = formats.as_float32(w, encoding.tensor.name or "", axis, start)
    quantize = _algorithm(encoding)
    if encoding.half_scales and encoding.layer is None:
        return in_half_scales(x, quantize(x, encoding.format, encoding.granularity))
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

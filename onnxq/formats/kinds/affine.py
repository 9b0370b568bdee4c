"""Shared by the integer formats: x ≈ scale · (code − zero point), rounding half to even.

Source: ONNX QuantizeLinear and DequantizeLinear (operator specification, opset 21).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import arguments, fast

TINY = np.finfo(np.float32).tiny
#: What the largest code times its scale may come to: a little less than the largest float32 number, for rounding.
LARGEST = 3.4028e38


def fit_symmetric(w: FloatArray, granularity: Granularity, qmax: int) -> FloatArray:
    """Scales that put the largest magnitude on `qmax`."""
    groups, axes = granularity.groups(w)
    return usable_scale(np.max(np.abs(groups), axis=axes, initial=0).astype(np.float64) / qmax, qmax)


def fit_signed(w: FloatArray, granularity: Granularity, qmin: int) -> FloatArray:
    """Scales of either sign, which put the weight of largest magnitude of each block on the lowest code.

    Of the codes of few bits none is wasted so, at the price that what reaches as far on the other side is clipped by
    up to one step. Of equal magnitudes the negative one counts. This is onnxruntime's rule for symmetric MatMulNBits
    weights.
    """
    groups, axes = granularity.groups(w)
    low, high = np.min(groups, axis=axes, initial=0), np.max(groups, axis=axes, initial=0)
    return usable_scale(np.where(high > -low, high, low).astype(np.float64) / qmin, -qmin)


def extreme(w: FloatArray, granularity: Granularity) -> FloatArray:
    """The weight of largest magnitude of each group, with its sign; of equal magnitudes the first."""
    groups, axes = granularity.groups(w)
    rest = [i for i in range(groups.ndim) if i not in axes]
    rows = groups.transpose([*rest, *axes]).reshape(*(groups.shape[i] for i in rest), -1) if groups.size else None
    if rows is None:
        return np.zeros(granularity.scale_shape(w.shape), np.float32)
    first = np.argmax(np.abs(rows), axis=-1)
    return np.take_along_axis(rows, first[..., None], axis=-1)[..., 0]


def fit_range(
    w: FloatArray, granularity: Granularity, qmin: int, qmax: int, dtype: np.dtype
) -> tuple[FloatArray, CodeArray]:
    """Scales and zero points that spread [min(w, 0), max(w, 0)] over [qmin, qmax]."""
    groups, axes = granularity.groups(w)
    low = np.min(groups, axis=axes, initial=0).astype(np.float64)
    high = np.max(groups, axis=axes, initial=0).astype(np.float64)
    return scale_and_zero_point(low, high, qmin, qmax, dtype)


def scale_and_zero_point(
    low: NDArray[np.float64], high: NDArray[np.float64], qmin: int, qmax: int, dtype: np.dtype
) -> tuple[FloatArray, CodeArray]:
    """Scale and zero point of the ranges [low, high], which include zero.

    In float64, because the width of a finite float32 range can overflow float32.
    """
    scales = usable_scale((high - low) / (qmax - qmin), qmax - qmin)
    zero_points = np.clip(np.rint(qmin - low / scales), qmin, qmax)
    return scales, zero_points.astype(dtype)


def usable_scale(scales: NDArray[np.float64], qmax: float) -> FloatArray:
    """Scales as float32; 1 where a group holds only zeros or numbers too small for a normal float32 scale.

    None is so large that `qmax` steps of it are infinite: of a range wider than float32 the ends are clipped.
    """
    limit = LARGEST / qmax
    return np.where(np.abs(scales) < TINY, 1.0, np.clip(scales, -limit, limit)).astype(np.float32)


def encode(
    format: Format,
    w: FloatArray,
    granularity: Granularity,
    scales: ScaleArray,
    zero_points: CodeArray | None,
    qmin: int,
    qmax: int,
    dtype: np.dtype,
) -> QuantizedTensor:
    """Codes clipped to [qmin, qmax]."""
    q = np.asarray(np.rint(w / granularity.spread(scales.astype(np.float32, copy=False), w.shape)))
    if zero_points is not None:
        q += granularity.spread(zero_points, w.shape).astype(np.float32)
    codes = np.clip(q, qmin, qmax, out=q).astype(dtype)
    return QuantizedTensor(format, granularity, codes, scales, zero_points)


def encode_range(
    format: Format,
    w: FloatArray,
    granularity: Granularity,
    scales: ScaleArray | None,
    zero_points: CodeArray | None,
    qmax: int,
) -> QuantizedTensor:
    """Codes 0…qmax; without `scales`, those of `fit_range`, computed by the compiled library if it is there."""
    dtype = format.code_type
    made = fast.encode(format, w, granularity) if scales is None else None
    if made is not None:
        return made
    if scales is None:
        scales, zero_points = fit_range(w, granularity, 0, qmax, dtype)
    return encode(format, w, granularity, scales, zero_points, 0, qmax, dtype)


def fit_small(w: FloatArray, granularity: Granularity, bits: int) -> FloatArray:
    """Scales of symmetric integers of few bits: `fit_signed` in blocks, which operators of their own read.

    For a whole channel or tensor they are positive, as QuantizeLinear wants them and engines besides onnxruntime.
    """
    if granularity.block is None:
        return fit_symmetric(w, granularity, (1 << (bits - 1)) - 1)
    return fit_signed(w, granularity, -(1 << (bits - 1)))


def encode_small(format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None) -> QuantizedTensor:
    """Symmetric integers of few bits, all 2^bits codes in use."""
    made = fast.encode(format, w, granularity) if scales is None else None
    if made is not None:
        return made
    qmin = -(1 << (format.bits - 1))
    if scales is None:
        scales = fit_small(w, granularity, format.bits)
    return encode(format, w, granularity, scales, None, qmin, -qmin - 1, format.code_type)


def decode(q: QuantizedTensor) -> FloatArray:
    """scale · (code − zero point), in float32 as DequantizeLinear computes it."""
    scales = arguments.present(q.scales, "scales")
    w = q.codes.astype(np.float32)
    if q.zero_points is not None:
        w -= q.granularity.spread(q.zero_points, q.shape).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # of a file whose scales are infinite, or no numbers
        w *= q.granularity.spread(scales.astype(np.float32, copy=False), q.shape)
    return w


def in_half_scales(w: FloatArray, q: QuantizedTensor) -> QuantizedTensor:
    """`w` by the scales of `q` as float16 holds them, and the codes that are nearest for those."""
    half = arguments.present(q.scales, "scales").astype(np.float16)
    return q.format.encode(w, q.granularity, half.astype(np.float32), q.zero_points)

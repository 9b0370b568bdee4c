"""Shared by GGUF's formats: codes are computed with the float32 scale, which is then stored as float16.

Source: ggml's quantize_row_*_ref functions and gguf's quants.py. Where a scale is too small for float16 the block
decodes to zero; where it is too large, it is refused.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine, arguments, fast


def fit_signed(w: FloatArray, granularity: Granularity, qmin: int) -> FloatArray:
    """Scales of either sign, which put the weight of largest magnitude of each block on the lowest code."""
    return affine.extreme(w, granularity) / np.float32(qmin)


def encode_signed(
    format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None
) -> QuantizedTensor:
    """Codes trunc(x / d + half + 0.5) − half, half = 2^(bits − 1); halfway is rounded up. The product is in float64."""
    made = fast.encode(format, w, granularity) if scales is None else None
    if made is not None:
        return made
    half = 1 << (format.bits - 1)
    d = fit_signed(w, granularity, -half) if scales is None else scales.astype(np.float32)
    inverse = granularity.spread(reciprocal(d), w.shape)
    steps = np.trunc(w.astype(np.float64) * inverse.astype(np.float64) + (half + 0.5))
    codes = (np.clip(steps, 0, 2 * half - 1) - half).astype(format.code_type)
    return QuantizedTensor(format, granularity, codes, fast.stored(format, d))


def fit_absmax(w: FloatArray, granularity: Granularity) -> FloatArray:
    """Scales that put the largest magnitude of each block on 127."""
    groups, axes = granularity.groups(w)
    return np.max(np.abs(groups), axis=axes, initial=0).astype(np.float32) / np.float32(127)


def encode_absmax(
    format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None
) -> QuantizedTensor:
    """Codes x · (1 / d), half away from zero."""
    made = fast.encode(format, w, granularity) if scales is None else None
    if made is not None:
        return made
    d = fit_absmax(w, granularity) if scales is None else scales.astype(np.float32)
    steps = np.clip(w * granularity.spread(reciprocal(d), w.shape), -127, 127)
    down = np.floor(np.abs(steps))
    rounded = np.copysign(down + np.floor(2 * (np.abs(steps) - down)), steps)
    return QuantizedTensor(format, granularity, rounded.astype(format.code_type), fast.stored(format, d))


def fit_minimum(w: FloatArray, granularity: Granularity, qmax: int) -> tuple[FloatArray, FloatArray]:
    """Scales and minima that spread [min(w), max(w)] over 0…qmax. A range beyond float32 gives an infinite scale."""
    groups, axes = granularity.groups(w, "edge")
    if not groups.size:
        nothing = np.zeros(granularity.scale_shape(w.shape), np.float32)
        return nothing, nothing
    low, high = groups.min(axis=axes), groups.max(axis=axes)
    with np.errstate(over="ignore"):
        return np.asarray((high - low) / np.float32(qmax)), np.asarray(low)


def encode_minimum(
    format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None, minima: CodeArray | None
) -> QuantizedTensor:
    """Codes trunc((x − m) / d + 0.5)."""
    qmax = (1 << format.bits) - 1
    if scales is None or minima is None:
        d, low = fit_minimum(w, granularity, qmax)
    else:
        d, low = scales.astype(np.float32), minima.astype(np.float32)
    kept, kept_minima = fast.stored(format, d), fast.stored(format, low)
    steps = (w - granularity.spread(low, w.shape)) * granularity.spread(reciprocal(d), w.shape)
    codes = np.clip(np.trunc(steps + np.float32(0.5)), 0, qmax).astype(format.code_type)
    return QuantizedTensor(format, granularity, codes, kept, kept_minima)


def decode_minimum(q: QuantizedTensor) -> FloatArray:
    """d · code + m, each operation in float32."""
    scales, minima = arguments.present(q.scales, "scales"), arguments.present(q.zero_points, "minima")
    w = q.codes.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # of a file whose scales are infinite, or no numbers
        w *= q.granularity.spread(scales.astype(np.float32), q.shape)
        w += q.granularity.spread(minima.astype(np.float32), q.shape)
    return w


def reciprocal(d: FloatArray) -> FloatArray:
    """1 / d; 0 where d is too small for that, and then every code decodes to zero."""
    usable = np.abs(d) >= affine.TINY
    return np.where(usable, np.float32(1) / np.where(usable, d, np.float32(1)), np.float32(0))

"""Shared by the formats that are a conversion to a shorter floating-point type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from onnxq.errors import BadModel
from onnxq.formats import FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine


def encode(format: Format, w: FloatArray, dtype: DTypeLike) -> QuantizedTensor:
    """`w` rounded to `dtype`, half to even.

    Raises:
        BadModel: a finite weight would become infinite.
    """
    with np.errstate(over="ignore"):
        codes = w.astype(dtype)
    if not np.isfinite(codes.astype(np.float32)).all():
        largest = float(np.max(np.abs(w)))
        raise BadModel(f"a weight of magnitude {largest:g} does not fit {format.name}; choose a wider type")
    return QuantizedTensor(format, Granularity(), codes)


def decode(q: QuantizedTensor) -> FloatArray:
    """The same numbers as float32: exact."""
    return q.codes.astype(np.float32)


def fit(w: FloatArray, granularity: Granularity, dtype: np.dtype) -> FloatArray:
    """Scales that put the largest magnitude on the largest number of `dtype`."""
    groups, axes = granularity.groups(w)
    largest = np.max(np.abs(groups), axis=axes, initial=0).astype(np.float64)
    return affine.usable_scale(largest / largest_number(dtype), largest_number(dtype))


def encode_scaled(
    format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None
) -> QuantizedTensor:
    """`w` over its scale, clipped to the range of the type and rounded half to even."""
    if scales is None:
        scales = fit(w, granularity, format.code_type)
    limit = largest_number(format.code_type)
    steps = np.asarray(w / granularity.spread(scales.astype(np.float32, copy=False), w.shape))
    codes = np.clip(steps, -limit, limit, out=steps).astype(format.code_type)
    return QuantizedTensor(format, granularity, codes, scales)


def decode_scaled(q: QuantizedTensor) -> FloatArray:
    """scale · code, in float32."""
    return affine.decode(q)


def largest_number(dtype: np.dtype) -> float:
    """The largest finite number of a float8 type."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]

"""Shared by the formats that are a plain conversion to a shorter floating-point type."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from onnxq.errors import BadModel
from onnxq.formats import FloatArray, Format, Granularity, QuantizedTensor


def encode(format: Format, w: FloatArray, dtype: DTypeLike) -> QuantizedTensor:
    """`w` rounded to `dtype`, half to even.

    Raises:
        BadModel: a finite weight would become infinite.
    """
    with np.errstate(over="ignore"):
        codes = w.astype(dtype)
    if not np.isfinite(codes.astype(np.float32)).all():
        largest = float(np.max(np.abs(w)))
        raise BadModel(f"a weight of magnitude {largest:g} does not fit {format.name}; keep its node in float (--keep)")
    return QuantizedTensor(format, Granularity(), codes)


def decode(q: QuantizedTensor) -> FloatArray:
    """The same numbers as float32: exact."""
    return q.codes.astype(np.float32)

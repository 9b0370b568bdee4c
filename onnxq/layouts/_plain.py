"""The parts of a quantized weight as they are, in the types of ONNX."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.formats import E8M0, Format, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.layouts._layout import Outline, layout

_SHORT = {
    ("i", 2): np.dtype(ml_dtypes.int2),
    ("u", 2): np.dtype(ml_dtypes.uint2),
    ("i", 4): np.dtype(ml_dtypes.int4),
    ("u", 4): np.dtype(ml_dtypes.uint4),
}


def onnx_type(format: Format) -> np.dtype:
    """Of ONNX's types the one that has these codes: INT4 for int4, whose codes here take a byte each."""
    return _SHORT.get((format.code_type.kind, format.bits), format.code_type)


def exponents(scales: NDArray) -> NDArray:
    """Scales as they are; powers of two of 8 bits (E8M0) as the uint8 of their exponent."""
    return scales.view(np.uint8) if scales.dtype == E8M0 else scales


def exponent_type(w: Outline) -> np.dtype | None:
    """The type of `exponents`."""
    return np.dtype(np.uint8) if w.scale_type == E8M0 else w.scale_type


@layout(lambda w: onnx_type(w.format), lambda w: w.shape)
def codes(q: QuantizedTensor) -> NDArray:
    """In the weight's own shape."""
    return q.codes


@layout(lambda w: w.scale_type, lambda w: w.scale_shape)
def scales(q: QuantizedTensor) -> NDArray:
    """The scales of a format that has them."""
    return arguments.present(q.scales, "scales")


@layout(lambda w: w.format.offset_type if w.format.has_minimum else onnx_type(w.format), lambda w: w.scale_shape)
def zero_points(q: QuantizedTensor) -> NDArray:
    """The zero points of a format that has them."""
    return arguments.present(q.zero_points, "zero points")

"""What the codes of a quantized tensor can reach, found by asking its format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import OnnxqError
from onnxq.formats import FloatArray, Granularity, QuantizedTensor

#: Numbers that no scale in use reaches, and that survive being divided by one.
_FAR = np.float32(1e37)


def outside(w: FloatArray, q: QuantizedTensor) -> NDArray[np.bool_]:
    """Which numbers of `w` lie beyond the lowest or highest level of their group by more than half an average step.

    Of evenly spaced levels these are exactly the numbers whose rounded code had to be clipped. None is, in formats
    without scales, which refuse what they cannot hold, and in those that take no scale but their own.
    """
    found = levels_range(q)
    if found is None:
        return np.zeros(w.shape, bool)
    low, high = (q.granularity.spread(x, w.shape) for x in found)
    slack = (high - low) / (2 * max(1, 2**q.format.bits - 1))
    # Rounding of the quotient can leave a number that was meant to lie on the edge a few units beyond it.
    slack = slack * np.float32(1 + 1e-4)
    return (w > high + slack) | (w < low - slack)


def levels_range(q: QuantizedTensor) -> tuple[FloatArray, FloatArray] | None:
    """The lowest and highest number of each group, shaped like the scales; None where the format does not say."""
    if q.scales is None or not q.codes.size:
        return None
    granularity, shape = q.granularity, q.granularity.scale_shape(q.shape)
    axis = granularity.axis
    if axis is None:
        probe, each = (1,) * q.codes.ndim, granularity
    elif granularity.block is None:
        probe, each = tuple(n if i == axis else 1 for i, n in enumerate(q.shape)), granularity
    else:
        probe, each = shape, Granularity(axis, 1)
    # Of a format that stores its scales in fewer bits, the one below, which takes any scale.
    format = q.format.base or q.format
    try:
        with np.errstate(over="ignore"):
            low, high = (
                format.encode(np.full(probe, far, np.float32), each, q.scales, q.zero_points).dequantize()
                for far in (-_FAR, _FAR)
            )
    except (OnnxqError, ValueError):
        return None
    return low.reshape(shape), high.reshape(shape)

"""Shared by projects whose codes are signed integers in groups along the inputs, with float32 scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import QuantizedTensor


@dataclass(frozen=True, eq=False)
class WholeNumbers:
    """w = scale · (code − zero) [out, in].

    Attributes:
        codes: int8, from -2^(bits − 1) on.
        scales: float32 [out, groups], or [1, 1] of the tensor.
        zeros: int8 like `scales`; None: all are 0.
        group: inputs that share a scale.
    """

    bits: int
    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int8] | None
    group: int


def whole_numbers(q: QuantizedTensor) -> WholeNumbers | None:
    """A matrix in this form; None where its codes are none, or its groups are not equal ones along the inputs."""
    format, how = q.format, q.granularity
    if not format.is_integer and (format.base is None or not format.base.is_integer):
        return None
    if format.bits > 8 or format.has_minimum or q.scales is None or len(q.shape) != 2:
        return None
    k = q.shape[1]
    if how.block is None and how.axis in (None, 0):
        group, scales = k, q.scales.reshape(-1, 1)
    elif how.block is not None and how.axis == 1 and (k % how.block == 0 or how.block >= k):
        group, scales = min(k, how.block), q.scales
    else:
        return None
    middle = 0 if q.codes.dtype == np.int8 else 1 << (format.bits - 1)
    zeros: NDArray | None = None
    if q.zero_points is not None:
        zeros = (q.zero_points.reshape(scales.shape).astype(np.int16) - middle).astype(np.int8)
    elif middle:
        zeros = np.full(scales.shape, -middle, np.int8)
    codes = (q.codes.astype(np.int16) - middle).astype(np.int8)
    return WholeNumbers(format.bits, codes, scales.astype(np.float32), zeros, group)

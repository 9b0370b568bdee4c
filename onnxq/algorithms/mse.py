"""mse: of a few scales below and above the format's own, the one with the least squared error in each group.

Clipping the few largest weights of a block lets all others be finer: worth a third of a dB on 4-bit weights, and much
of the likelihood that a language model would lose. The reference is plain numpy; the compiled library does the same,
bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms._base import base_first
from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor
from onnxq.runtime import native

#: Factors of the format's own scale that are tried; the scale itself is always among the candidates.
FACTORS = np.array([0.76, 0.80, 0.84, 0.88, 0.92, 0.96, 1.04], np.float32)
#: Of a scale that is a power of two, and stays one.
POWERS = np.array([0.5, 2.0], np.float32)

QUICK = True


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return format.bits <= 4


@base_first
def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
) -> QuantizedTensor:
    """`w` in `format`, each group with the best of the scales tried. Formats without scales are only encoded."""
    granularity = granularity.within(w.ndim)
    if scales is None and granularity.block is not None and w.size:
        found = _native(w, format, granularity)
        if found is not None:
            return found
    return best_scales(w, format, granularity, scales, zero_points)


def best_scales(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
    *,
    weights: NDArray[np.float32] | None = None,
) -> QuantizedTensor:
    """`w` in `format`, each group with the best of the scales tried.

    Args:
        weights: how much each number's squared error counts; None: all count the same.
    """
    if scales is None:
        scales, zero_points = format.fit(w, granularity)
    if scales is None:
        return format.encode(w, granularity)
    best = format.encode(w, granularity, scales, zero_points)
    least = squared_errors(w, best, weights)
    for factor in POWERS if format.powers_of_two else FACTORS:
        with np.errstate(over="ignore"):
            tried = scales * factor
        usable = (np.abs(tried) >= np.finfo(np.float32).tiny) & np.isfinite(tried)
        other = format.encode(w, granularity, np.where(usable, tried, np.float32(1)), zero_points)
        errors = squared_errors(w, other, weights)
        better = usable & (errors < least)
        least = np.where(better, errors, least)
        assert best.scales is not None
        chosen = np.where(better, tried, best.scales)
        best = QuantizedTensor(format, granularity, best.codes, chosen, zero_points)
    return format.encode(w, granularity, best.scales, zero_points)


def squared_errors(
    w: FloatArray, q: QuantizedTensor, weights: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Sum of squared errors of each group, in float32, added from the first element of a block to its last.

    The order matters only for being the same everywhere.

    Args:
        weights: how much each number counts; None: all count the same.
    """
    errors = q.dequantize() - w
    with np.errstate(over="ignore"):  # an infinite error is never the least one
        errors *= errors
        if weights is not None:
            errors *= weights
    groups, axes = q.granularity.groups(errors)
    if len(axes) != 1:
        return np.asarray(groups.sum(axis=axes, dtype=np.float32))
    total = np.zeros(q.granularity.scale_shape(w.shape), np.float32)
    with np.errstate(over="ignore"):
        for element in np.moveaxis(groups, axes[0], 0):
            total += element
    return total


def _native(w: FloatArray, format: Format, granularity: Granularity) -> QuantizedTensor | None:
    axis, block = granularity.axis, granularity.block
    assert axis is not None
    assert block is not None
    if format.tables is not None and np.abs(format.tables.levels).max() == 1:  # scales are largest magnitudes
        made = native.encode_level_blocks(w, axis, block, *format.tables, FACTORS)
        return None if made is None else QuantizedTensor(format, granularity, *made)
    if format.rule is not None and format.rule.fit is Fit.RANGE:
        affine = native.encode_affine_blocks(w, axis, block, format.rule.qmax, FACTORS)
        return None if affine is None else QuantizedTensor(format, granularity, *affine)
    return None

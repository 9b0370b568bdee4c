"""hqq: scales and zero points for which most weights are nearly exact, and a few may be far off.

The sum of |error|^0.7 is made small in the place of that of squares. Half-quadratic splitting takes turns: what the
largest errors have too much is set apart (a generalized soft threshold), and zero point and scale are those of least
squares for the rest. It needs no data, and serves formats with zero points or minima best, as these have two numbers
a group to fit.

Source: Badri & Shaji, Half-Quadratic Quantization of Large Machine Learning Models (2023), which fits zero points only;
that the scale takes its turn too is ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms._base import base_first
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor

#: Of the norm whose power is made small; the weight of what is set apart, and what it grows by each turn.
NORM, WEIGHT, GROWTH = 0.7, 10.0, 1.05
TURNS = 20


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return False  # mse measured better (docs/algorithms.md)


@base_first
def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
) -> QuantizedTensor:
    """`w` in `format`, each group with the scale and zero point of the turn in which its error was the least.

    Formats without scales are only encoded, and so are those whose scales are powers of two.
    """
    granularity = granularity.within(w.ndim)
    best = format.encode(w, granularity, scales, zero_points)
    if scales is not None or best.scales is None or format.powers_of_two or not w.size:
        return best
    least, now = errors_of(w, best), best
    for turn in range(TURNS):  # all of them: when one group is done says nothing of those beside it
        now = _next(w, now, np.float32(WEIGHT * GROWTH**turn))
        found = errors_of(w, now)
        better = found < least
        least = np.where(better, found, least)
        assert now.scales is not None and best.scales is not None
        kept = np.where(better, now.scales, best.scales)
        zeros = None if now.zero_points is None else np.where(better, now.zero_points, best.zero_points)  # type: ignore[arg-type]
        best = QuantizedTensor(format, granularity, best.codes, kept, zeros)
    return format.encode(w, granularity, best.scales, best.zero_points)


def errors_of(w: FloatArray, q: QuantizedTensor) -> NDArray[np.float64]:
    """The sum of |error|^0.7 of each group."""
    with np.errstate(over="ignore", invalid="ignore"):  # an error that is no number is never the least
        return _sums(np.abs(q.dequantize().astype(np.float64) - w) ** NORM, q.granularity)


def _next(w: FloatArray, q: QuantizedTensor, weight: np.float32) -> QuantizedTensor:
    """The weight by the zero points, then the scales, that are best for the codes of `q` and what is not set apart."""
    assert q.scales is not None
    granularity, format = q.granularity, q.format
    scales = q.scales.astype(np.float64)
    step = granularity.spread(scales, w.shape)
    with np.errstate(all="ignore"):  # what is no number to divide by is left out below
        wanted = w - step * _beyond((w - q.dequantize()) / step, weight)
        codes, zeros = q.codes.astype(np.float64) if format.levels is None else None, q.zero_points
        if codes is not None and zeros is not None:
            zeros = _zeros(q, wanted, codes, step)
        units = _units(q, codes, zeros, step)
        if format.has_minimum and zeros is not None:
            wanted = wanted - granularity.spread(zeros.astype(np.float64), w.shape)
        new = (_sums(units * wanted, granularity) / _sums(units * units, granularity)).astype(q.scales.dtype)
        usable = np.isfinite(new) & (np.abs(new) >= np.finfo(q.scales.dtype).tiny) & (new * scales > 0)
        if zeros is not None and q.zero_points is not None:
            usable &= np.isfinite(zeros.astype(np.float64))
            zeros = np.where(usable, zeros, q.zero_points).astype(q.zero_points.dtype)
        return format.encode(w, granularity, np.where(usable, new, q.scales), zeros)


def _beyond(x: NDArray[np.float64], weight: np.float32) -> NDArray[np.float64]:
    """What of each error is set apart: nothing of small ones, nearly all of large ones."""
    size = np.abs(x)
    return np.sign(x) * np.maximum(size - np.maximum(size, 1e-9) ** (NORM - 1) / weight, 0)


def _zeros(
    q: QuantizedTensor, wanted: NDArray[np.float64], codes: NDArray[np.float64], step: NDArray[np.float64]
) -> NDArray:
    """The zero points or minima in the middle of what the numbers say."""
    assert q.zero_points is not None
    count = _sums(np.ones_like(wanted), q.granularity)
    if q.format.has_minimum:
        return (_sums(wanted - step * codes, q.granularity) / count).astype(q.zero_points.dtype)
    middle = np.rint(_sums(codes - wanted / step, q.granularity) / count)
    return np.clip(np.nan_to_num(middle), 0, (1 << q.format.bits) - 1).astype(q.zero_points.dtype)


def _units(
    q: QuantizedTensor, codes: NDArray[np.float64] | None, zeros: NDArray | None, step: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What each code is in scales, above its minimum if there is one."""
    if codes is None:
        return np.asarray(q.dequantize() / step, np.float64)
    if zeros is None or q.format.has_minimum:
        return codes
    return np.asarray(codes - q.granularity.spread(zeros, q.shape), np.float64)


def _sums(x: NDArray, granularity: Granularity) -> NDArray[np.float64]:
    groups, axes = granularity.groups(x)
    return np.asarray(groups.sum(axis=axes, dtype=np.float64))

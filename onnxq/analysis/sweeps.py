"""What the error depends on: the scale, the outliers, the number of bits, and how many weights share a scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxq import fake_quant, formats
from onnxq.analysis import granularities
from onnxq.analysis.statistics import ErrorStats, ErrorSums, error_stats
from onnxq.analysis.tensor import tensor_error
from onnxq.errors import BadRecipe
from onnxq.formats import FloatArray, Granularity
from onnxq.model.weights import Role

#: Factors of the format's own scale that a sweep tries.
FACTORS = tuple(round(float(x), 3) for x in np.linspace(0.5, 1.5, 21))


@dataclass(frozen=True)
class ScalePoint:
    """The error when every scale is `factor` times the format's own."""

    factor: float
    stats: ErrorStats


def scale_sweep(
    w: FloatArray, format: str, granularity: Granularity | None = None, factors: Sequence[float] = FACTORS
) -> list[ScalePoint]:
    """How the error of `w` reacts to the scale: finer scales clip more, coarser ones round more.

    Raises:
        BadRecipe: the format has no scale to change.
    """
    found, how = formats.get(format), granularity or Granularity()
    scales, zero_points = found.fit(w, how)
    if scales is None:
        raise BadRecipe(f"{format} has no scales to change; choose a format that has")
    points = []
    for factor in factors:
        sums = ErrorSums()
        sums.add_quantized(w, found.encode(w, how, (scales * np.float32(factor)).astype(scales.dtype), zero_points))
        points.append(ScalePoint(factor, sums.stats()))
    return points


def best_scale(points: Iterable[ScalePoint]) -> ScalePoint:
    """The point of the least squared error; of several, the one nearest to the format's own scale."""
    return min(points, key=lambda point: (point.stats.mse, abs(point.factor - 1)))


@dataclass(frozen=True)
class OutlierImpact:
    """What the largest weights do to all others.

    Attributes:
        percent: share of the weights, by magnitude, that count as outliers.
        threshold: the least magnitude among them.
        whole: error of all weights.
        rest: error of the other weights, quantized together with the outliers.
        rest_alone: error of the other weights, quantized with zeros in the place of the outliers.
    """

    percent: float
    threshold: float
    whole: ErrorStats
    rest: ErrorStats
    rest_alone: ErrorStats

    @property
    def cost(self) -> float:
        """dB of SQNR that the outliers cost the other weights."""
        return self.rest_alone.sqnr - self.rest.sqnr


def outlier_impact(
    w: FloatArray, format: str, granularity: Granularity | None = None, percent: float = 0.1
) -> OutlierImpact:
    """The error of `w` with and without its largest `percent` % (at least one weight).

    Raises:
        ValueError: `percent` leaves no weights, or there are too few.
    """
    if not 0 < percent < 100 or w.size < 2:
        raise ValueError(f"{percent} % of {w.size} weights leave nothing to compare")
    found, how = formats.get(format), granularity or Granularity()
    count = min(w.size - 1, max(1, round(w.size * percent / 100)))
    # By rank and not by threshold, so that equal magnitudes cannot make it more than the share asked for.
    top = np.argpartition(np.abs(w).reshape(-1), w.size - count)[w.size - count :]
    rest = np.ones(w.size, bool)
    rest[top] = False
    keep = rest.reshape(w.shape)
    quantized = found.encode(w, how).dequantize()
    alone = found.encode(np.where(keep, w, np.float32(0)), how).dequantize()
    return OutlierImpact(
        percent,
        float(np.abs(w.reshape(-1)[top]).min()),
        error_stats(w, quantized),
        error_stats(w[keep], quantized[keep]),
        error_stats(w[keep], alone[keep]),
    )


def compare_bit_widths(
    w: FloatArray, bits: Iterable[int] = range(2, 9), *, symmetric: bool = True, axis: int | None = None
) -> dict[int, ErrorStats]:
    """The error of `w` in evenly spaced levels of each width, with the range from its own extremes.

    Args:
        symmetric: codes -(2^(b-1) - 1)…2^(b-1) - 1 and no zero point; else codes 0…2^b - 1 over [min, max].
        axis: one scale for each index of this axis; one for all if None.
    """
    found = {}
    for width in bits:
        p = fake_quant.fit(w, width, symmetric=symmetric, axis=axis)
        found[width] = error_stats(w, fake_quant.forward(w, p))
    return found


def compare_granularities(
    w: FloatArray, format: str, role: Role, words: Iterable[str] = granularities.WORDS
) -> dict[str, ErrorStats]:
    """The error of `w` in `format` for each granularity that the format takes, by its word."""
    found: dict[str, ErrorStats] = {}
    for word in words:
        own = granularities.taken(format, word)
        if own is not None and own not in found:
            found[own] = tensor_error(w, format, granularities.parse(own, role))
    return found

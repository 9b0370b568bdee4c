"""What the error depends on: the scale, the outliers, the number of bits, and how many weights share a scale."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from onnxq import fake_quant, formats
from onnxq.analysis import granularities
from onnxq.analysis.statistics import ErrorStats, ErrorSums, error_stats
from onnxq.analysis.tensor import tensor_error
from onnxq.errors import BadRecipe
from onnxq.formats import Granularity
from onnxq.formats.kinds import arguments
from onnxq.model.weights import Role

#: Factors of the format's own scale that a sweep tries; of scales that are powers of two, and stay such.
FACTORS = tuple(round(float(x), 3) for x in np.linspace(0.5, 1.5, 21))
POWERS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class ScalePoint:
    """The error when every scale is `factor` times the format's own."""

    factor: float
    stats: ErrorStats


def scale_sweep(
    w: ArrayLike, format: str, granularity: Granularity | None = None, factors: Sequence[float] | None = None
) -> list[ScalePoint]:
    """How the error of `w` reacts to the scale: finer scales clip more, coarser ones round more.

    Args:
        w: any shape, finite.
        granularity: which weights share a scale; one for all if None.
        factors: of the format's own scale, above zero; `FACTORS` by default, and `POWERS` for formats whose scales
            are powers of two. A scale that float32 does not hold in full precision stays what it is.

    Raises:
        BadModel: a weight is not finite, or a scale beyond what the format holds.
        BadRecipe: the format has no scale to change, or none that is so many times its own.
        ValueError: a factor is not above zero, `w` is no array of real numbers or has no such axis.
    """
    found, w = formats.get(format), formats.as_float32(arguments.numbers(w), "w")
    how = (granularity or Granularity()).within(w.ndim)
    of_powers = found.powers_of_two
    factors = tuple((POWERS if of_powers else FACTORS) if factors is None else factors)
    for factor in factors:
        if not 0 < factor < math.inf:
            raise ValueError(f"a scale cannot be {factor} times what it is")
        if of_powers and math.frexp(factor)[0] != 0.5:
            raise BadRecipe(f"scales of {format} are powers of two, and cannot be {factor:g} times what they are")
    scales, zero_points = found.fit(w, how)
    if scales is None:
        raise BadRecipe(f"{format} has no scales to change; choose a format that has")
    points = []
    for factor in factors:
        sums = ErrorSums()
        with np.errstate(over="ignore"):
            tried = scales * np.float32(factor)
        usable = (np.abs(tried) >= np.finfo(np.float32).tiny) & np.isfinite(tried)
        sums.add_quantized(w, found.encode(w, how, np.where(usable, tried, scales), zero_points))
        points.append(ScalePoint(factor, sums.stats()))
    return points


def best_scale(points: Iterable[ScalePoint]) -> ScalePoint:
    """The point of the least squared error; of several, the one nearest to the format's own scale.

    Args:
        points: of `scale_sweep`.

    Raises:
        ValueError: there is none.
    """
    points = list(points)
    if not points:
        raise ValueError("of no points none is the best")
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
    w: ArrayLike, format: str, granularity: Granularity | None = None, percent: float = 0.1
) -> OutlierImpact:
    """The error of `w` with and without its largest `percent` % (at least one weight).

    Args:
        w: any shape, finite.
        granularity: which weights share a scale; one for all if None.

    Raises:
        BadModel: a weight is not finite.
        BadRecipe: there is no such format.
        ValueError: `percent` leaves no weights, or there are too few; `w` is no array of real numbers or has no such
            axis.
    """
    w = formats.as_float32(arguments.numbers(w), "w")
    if not 0 < percent < 100 or w.size < 2:
        raise ValueError(f"{percent} % of {w.size} weights leave nothing to compare")
    found, how = formats.get(format), (granularity or Granularity()).within(w.ndim)
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
    w: ArrayLike,
    bits: int | Iterable[int] = range(2, 9),
    *,
    symmetric: bool = True,
    axis: int | None = None,
    widen: bool = True,
    powers_of_two: bool = False,
) -> dict[int, ErrorStats]:
    """The error of `w` in evenly spaced levels of each width, with the range from its own extremes.

    Bits per weight count a float32 scale for each group, and a zero point of as many bits as a code if not symmetric.

    Args:
        w: any shape, finite.
        bits: widths, each from 2 to 16.
        symmetric: codes -(2^(b-1) - 1)…2^(b-1) - 1 and no zero point; else codes 0…2^b - 1 over [min, max].
        axis: one scale for each index of this axis; one for all if None.
        widen: affine ranges to zero, as integers in files need it; without that data in [2, 5] keeps [2, 5].
        powers_of_two: scales that are such, the next above [min, max].

    Raises:
        BadModel: a weight is not finite.
        ValueError: a width out of these bounds; `w` is no array of real numbers or has no such axis.
    """
    w, found = formats.as_float32(arguments.numbers(w), "w"), {}
    for width in (bits,) if isinstance(bits, int) else bits:
        grid = fake_quant.fit(w, width, symmetric=symmetric, axis=axis, widen=widen, powers_of_two=powers_of_two)
        codes, groups = fake_quant.codes(w, grid), grid.scale.size
        nbits = width * w.size + groups * (32 if symmetric else 32 + width)
        found[int(width)] = dataclasses.replace(
            error_stats(w, fake_quant.forward(w, grid)),
            clipped=float(np.mean(~fake_quant.inside(w, grid, slack=0.5))) if w.size else 0.0,
            levels_used=np.unique(codes).size / 2**width,
            bits_per_weight=nbits / max(1, w.size),
        )
    return found


def compare_granularities(
    w: ArrayLike, format: str, role: Role, words: Iterable[str] = granularities.WORDS
) -> dict[str, ErrorStats]:
    """The error of `w` in `format` for each granularity that the format takes, by its word.

    Args:
        words: granularities; one that the format does not take is left out.
        role: which axis of `w` its channels are, and which one is summed over.

    Raises:
        BadModel: a weight is not finite.
        BadRecipe: there is no such format or word.
        ValueError: `w` is no array of real numbers or lacks an axis.
    """
    found: dict[str, ErrorStats] = {}
    for word in words:
        own = granularities.taken(format, word)
        if own is not None and own not in found:
            found[own] = tensor_error(w, format, granularities.parse(own, role))
    return found

"""The reference in plain numpy: x̂ = s · (clip(round(x/s) + z, qmin, qmax) − z), rounding half to even.

Sources: Jacob et al., Quantization and Training of Neural Networks (2018), section 3, for the forward pass; Bengio et
al., Estimating or Propagating Gradients (2013), for the straight-through gradient; Esser et al., Learned Step Size
Quantization (2020), equation 3, for the gradient of the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments

Floats = NDArray[np.floating]
#: Codes from zero beyond which float32 has not the digits to tell neighbours apart.
FAR = 1 << 17


class Grouped:
    """What has parameters for a whole tensor, for each channel (`axis`), or for each `block` of neighbours along it."""

    axis: int | None
    block: int | None

    @property
    def granularity(self) -> Granularity:
        """Which numbers share a scale."""
        return Granularity(self.axis, self.block)

    def spread(self, x: NDArray, parameter: NDArray) -> NDArray:
        """`parameter` so shaped that it broadcasts against `x`.

        Raises:
            ValueError: `x` has no such axis, or another number of channels or blocks than there are scales.
        """
        if self.axis is not None:
            arguments.require_shape("scales", parameter, self.granularity.scale_shape(x.shape))
        return self.granularity.spread(parameter, x.shape)

    def summed(self, x: NDArray) -> NDArray:
        """`x` summed over everything that shares a scale: the shape of the scales."""
        groups, axes = self.granularity.groups(x)
        return np.asarray(groups.sum(axis=axes))

    def _require(self, scale: NDArray, other: NDArray, what: str, qmin: int, qmax: int) -> None:
        _ = self.granularity
        wanted = 0 if self.axis is None else 1
        fits = scale.ndim == wanted if self.block is None else scale.ndim >= 1
        if not fits or other.shape != scale.shape:
            raise ValueError(f"scales {scale.shape} and {what} {other.shape} for axis {self.axis}")
        if not np.isfinite(scale).all() or not scale.all():
            raise ValueError("every scale must be finite and not zero")
        if qmin >= qmax:
            raise ValueError(f"codes {qmin}…{qmax}: at least 2 are needed")


@dataclass(frozen=True, eq=False)
class AffineGrid(Grouped):
    """Evenly spaced levels, for a whole tensor, for each channel or for each block.

    Attributes:
        scale: steps, not zero (below it where a format of blocks has them so): a number, [channels], or one for each
            block in the shape of `Granularity(axis, block).scale_shape`.
        zero_point: code of the number zero, of the scale's shape; zeros if symmetric. Beyond qmin…qmax where the range
            does not hold zero (`widen=False`).
        qmin, qmax: lowest and highest code.
        axis: of the channels or blocks; None for one scale. Negative ones count from the back.
        block: neighbours along `axis` that share a scale; None: all of them.

    Raises:
        ValueError: shapes that do not fit each other, a step of zero, no step, a block without an axis.
    """

    scale: Floats
    zero_point: NDArray[np.int64]
    qmin: int
    qmax: int
    axis: int | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", np.asarray(self.scale))
        object.__setattr__(self, "zero_point", np.asarray(self.zero_point))
        self._require(self.scale, self.zero_point, "zero points", self.qmin, self.qmax)


def codes_of(bits: int, *, symmetric: bool) -> tuple[int, int]:
    """Lowest and highest code: as many below zero as above if symmetric, else 0…2^b − 1.

    Raises:
        ValueError: fewer than 2 or more than 16 bits, or no whole number of them.
    """
    bits = arguments.whole(bits, "the number of bits")
    if not 2 <= bits <= 16:
        raise ValueError(f"{bits} bits: choose 2 to 16")
    return (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)


def grid_over(
    low: ArrayLike,
    high: ArrayLike,
    bits: int = 8,
    *,
    symmetric: bool = True,
    axis: int | None = None,
    block: int | None = None,
    widen: bool = True,
    powers_of_two: bool = False,
) -> AffineGrid:
    """The finest grid that covers [low, high] and zero; of step 1 where that is zero alone.

    Args:
        bits, symmetric: of the codes, as `codes_of` has them.
        low, high: numbers, or [channels] if there is an `axis`, or one for each block.
        widen: to zero. Without that [2, 5] keeps all codes to itself, and the zero point, whose code no number has,
            lies beyond them: what files hold in integers cannot be so. Of a single number that one is exact.
        powers_of_two: the next power of two above the scale that would do.

    Raises:
        ValueError: a range that is not finite or ends before it begins, or widths other than 2 to 16 bits.
    """
    qmin, qmax = codes_of(bits, symmetric=symmetric)
    least, most = ends(low, high)
    is_wide = widen or symmetric
    bottom, top = (np.minimum(least, 0), np.maximum(most, 0)) if is_wide else (least, most)
    # Half of each, because the width of a range of float64 can overflow.
    scale = np.maximum(-bottom, top) / qmax if symmetric else 2 * ((top / 2 - bottom / 2) / (qmax - qmin))
    tiny = np.finfo(np.float32).tiny
    # Steps finer than this number's own digits say nothing of it.
    scale = np.where(scale < np.maximum(tiny, 0 if is_wide else np.abs(bottom) * 2.0**-40), np.abs(bottom), scale)
    scale = np.where(scale < tiny, 1.0, scale)
    if powers_of_two:
        fraction, exponent = np.frexp(scale)
        scale = np.ldexp(1.0, np.where(fraction == 0.5, exponent - 1, exponent))
    if (scale > np.finfo(np.float32).max).any():
        raise ValueError("the range is wider than float32 scales hold")
    scale = scale.astype(np.float32)
    zero = np.zeros(scale.shape) if symmetric else np.rint(qmin - bottom / scale)
    zero = np.clip(zero, qmin, qmax) if is_wide else zero
    return AffineGrid(scale, zero.astype(np.int64), qmin, qmax, axis, block)


def fit(
    x: ArrayLike,
    bits: int = 8,
    *,
    symmetric: bool = True,
    axis: int | None = None,
    block: int | None = None,
    widen: bool = True,
    powers_of_two: bool = False,
) -> AffineGrid:
    """The grid over the extremes of `x`; over those of each channel or block if there is an `axis`.

    Args:
        bits, symmetric, axis, block, widen, powers_of_two: as of `grid_over`. Of no numbers the range is zero.

    Raises:
        ValueError: a number that is not finite, no such axis, or widths other than 2 to 16 bits.

    >>> grid = fit([2.0, 3.0, 5.0], 4, symmetric=False, widen=False)
    >>> codes([2.0, 3.0, 5.0], grid).tolist()
    [0, 5, 15]
    >>> [round(float(x), 6) for x in forward([2.0, 3.1, 5.0], grid)]
    [2.0, 3.0, 5.0]
    """
    low, high = extremes(x, Granularity(axis, block))
    how = {"symmetric": symmetric, "widen": widen, "powers_of_two": powers_of_two}
    return grid_over(low, high, bits, axis=axis, block=block, **how)


def extremes(x: ArrayLike, granularity: Granularity) -> tuple[Floats, Floats]:
    """The lowest and the highest number of each group of `x`; zeros where there are no numbers.

    Raises:
        ValueError: no array of real numbers, or no such axis.
    """
    numbers = arguments.numbers(x, "tensor")
    groups, axes = granularity.groups(numbers, "edge")  # what fills a short block up is no number of its own
    if not groups.size:
        return (np.zeros(granularity.scale_shape(numbers.shape)),) * 2
    return np.min(groups, axes), np.max(groups, axes)


def ends(low: ArrayLike, high: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both ends of a range, or of several, as numbers.

    Raises:
        ValueError: ranges that are not finite or end before they begin.
    """
    least, most = (arguments.numbers(end, "range").astype(np.float64) for end in (low, high))
    if least.shape != most.shape or not (np.isfinite(least) & np.isfinite(most) & (least <= most)).all():
        raise ValueError("a range has two finite ends, the lower one first")
    return least, most


def grid_of(q: QuantizedTensor) -> AffineGrid:
    """The grid of a weight in an integer format: training goes on from what its file holds.

    `codes(w, grid_of(q))` are those that `format.encode` finds with the same scales, for the formats of ONNX (`int4`,
    `uint8`, `pow2_int4` …); ggml's (`q4_0` …) round numbers in the middle of two codes another way.

    Raises:
        ValueError: codes of the format are no multiples of a scale, or are too large.
    """
    format = q.format
    if not format.is_integer or format.has_minimum or q.scales is None:
        raise ValueError(f"the levels of {format.name} are no multiples of a scale: it has no affine grid")
    ends = np.array([-1e6, 1e6], np.float32)
    of_one = None if format.offset_type is None else np.zeros((), format.offset_type)
    low, high = (int(code) for code in format.encode(ends, Granularity(), np.ones((), q.scales.dtype), of_one).codes)
    low, high = min(low, high), max(low, high)
    zero = np.zeros(q.scales.shape, np.int64) if q.zero_points is None else q.zero_points.astype(np.int64)
    return AffineGrid(q.scales.astype(np.float32), zero, low, high, q.granularity.axis, q.granularity.block)


def codes(x: ArrayLike, grid: AffineGrid) -> NDArray[np.int32]:
    """Which level of the grid each number of `x` is rounded to: qmin…qmax, in its own shape.

    Raises:
        ValueError: a number is NaN, or `x` does not fit the grid.
    """
    x = arguments.numbers(x, "tensor")
    if np.isnan(x).any():
        index = [int(i) for i in np.argwhere(np.isnan(x))[0]]
        raise ValueError(f"the tensor holds nan at {index}, for which no code stands")
    scale, zero = _parameters(x, grid)
    return np.clip(np.rint(x / scale) + zero, grid.qmin, grid.qmax).astype(np.int32)


def from_codes(codes: ArrayLike, grid: AffineGrid) -> NDArray[np.float32]:
    """The numbers that codes stand for: s · (q − z), in their own shape.

    Args:
        codes: integers of any type and shape.
        grid: of that shape.

    Raises:
        ValueError: a code beyond qmin…qmax, or that is no integer.
    """
    q = np.asarray(codes)
    if q.dtype.kind not in "iu":
        raise ValueError(f"codes are integers, not {q.dtype}")
    if q.size and not grid.qmin <= int(q.min()) <= int(q.max()) <= grid.qmax:
        raise ValueError(f"codes {int(q.min())}…{int(q.max())} are beyond {grid.qmin}…{grid.qmax}")
    scale, zero = _parameters(np.empty(q.shape, np.float32), grid)
    return ((q.astype(scale.dtype) - zero) * scale).astype(np.float32)


def forward(x: ArrayLike, grid: AffineGrid) -> Floats:
    """`x` rounded to the grid: its own shape and type (float32 of integers). NaN stays NaN.

    Raises:
        ValueError: `x` does not fit the grid.
    """
    x = arguments.numbers(x, "tensor")
    scale, zero = _parameters(x, grid)
    q = np.clip(np.rint(x / scale) + zero, grid.qmin, grid.qmax)
    return ((q - zero) * scale).astype(x.dtype)


def inside(x: ArrayLike, grid: AffineGrid, *, slack: float = 0.0) -> NDArray[np.bool_]:
    """Where qmin ≤ x/s + z ≤ qmax: the numbers that are rounded, not clipped; by up to `slack` steps more.

    Args:
        grid: of the shape of `x`.
    """
    x = arguments.numbers(x, "tensor")
    scale, zero = _parameters(x, grid)
    v = x / scale + zero
    return (v >= grid.qmin - slack) & (v <= grid.qmax + slack)


def backward(gradient: Floats, x: Floats, grid: AffineGrid) -> Floats:
    """The gradient of `x`, given that of `forward(x, grid)`: passed on inside the range, zero outside.

    Raises:
        ValueError: `gradient` and `x` have different shapes, or `x` does not fit the grid.
    """
    gradient, x = pair(gradient, x)
    return np.where(inside(x, grid), gradient, np.zeros((), gradient.dtype))


def backward_lsq(gradient: Floats, x: Floats, grid: AffineGrid) -> tuple[Floats, Floats]:
    """(gradient of `x`, gradient of the scales), given that of `forward(x, grid)`.

    The rounding counts as a constant offset: ∂x̂/∂s is round(x/s) − x/s inside the range, qmin − z below and qmax − z
    above. Not multiplied by `gradient_factor`. It has the scales' shape and is summed in float64.

    Raises:
        ValueError: `gradient` and `x` have different shapes, or `x` does not fit the grid.
    """
    gradient, x = pair(gradient, x)
    scale, zero = _parameters(x, grid)
    v = (x / scale).astype(np.float64)
    step = np.where(
        v + zero < grid.qmin, grid.qmin - zero, np.where(v + zero > grid.qmax, grid.qmax - zero, np.rint(v) - v)
    )
    of_scale = grid.summed(step * gradient)
    return backward(gradient, x, grid), of_scale.astype(grid.scale.dtype)


def pair(gradient: ArrayLike, x: ArrayLike) -> tuple[Floats, Floats]:
    """Both as arrays of real numbers.

    Raises:
        ValueError: their shapes differ.
    """
    gradient, x = arguments.numbers(gradient, "gradient"), arguments.numbers(x, "tensor")
    arguments.require_shape("gradients", gradient, x.shape)
    return gradient, x


def _parameters(x: NDArray, grid: AffineGrid) -> tuple[Floats, Floats]:
    """Scales and zero points against `x`, in its own type, as kernels compute; in float64 with zero points far away."""
    scale, zero = grid.spread(x, grid.scale), grid.spread(x, grid.zero_point)
    kind = np.result_type(x.dtype, np.float32)
    if grid.zero_point.size and np.abs(grid.zero_point).max() > FAR:
        kind = np.result_type(np.float64)
    return scale.astype(kind), zero.astype(kind)

"""Ranges that need not hold zero, with a gradient for where they begin: LSQ+.

x̂ = s · clip(round((x − β)/s), qmin, qmax) + β. The offset β is a number, not a code, so that zero is exact only where
it happens to be a level: for activations whose range is far from zero on one side (Swish, GELU).

Source: Bhalgat et al., LSQ+: Improving low-bit quantization through learnable offsets and better initialization (2020),
equations 1 to 5 and section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.fake_quant.affine import Floats, Grouped, codes_of, ends, extremes, pair
from onnxq.formats import Granularity
from onnxq.formats.kinds import arguments


@dataclass(frozen=True, eq=False)
class OffsetGrid(Grouped):
    """Evenly spaced levels s · q + β, for a whole tensor, for each channel or for each block.

    Attributes:
        scale: steps s, not zero: a number, [channels], or one for each block.
        offset: β, the number that code 0 stands for, of the scale's shape and in the unit of x.
        qmin, qmax: lowest and highest code.
        axis: of the channels or blocks; None for one scale. Negative ones count from the back.
        block: neighbours along `axis` that share a scale; None: all of them.

    Raises:
        ValueError: shapes that do not fit each other, a step of zero, an offset that is not finite, no step.
    """

    scale: Floats
    offset: Floats
    qmin: int
    qmax: int
    axis: int | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", np.asarray(self.scale))
        object.__setattr__(self, "offset", np.asarray(self.offset))
        self._require(self.scale, self.offset, "offsets", self.qmin, self.qmax)
        if not np.isfinite(self.offset).all():
            raise ValueError("every offset must be finite")


def offset_grid_over(
    low: ArrayLike, high: ArrayLike, bits: int = 8, *, axis: int | None = None, block: int | None = None
) -> OffsetGrid:
    """The grid whose lowest level is `low` and whose highest is `high`: the paper's start of training.

    Args:
        low, high: numbers, or [channels] if there is an `axis`, or one for each block.

    Raises:
        ValueError: a range that is not finite or ends before it begins, or widths other than 2 to 16 bits.
    """
    qmin, qmax = codes_of(bits, symmetric=False)
    least, most = ends(low, high)
    scale = 2 * ((most / 2 - least / 2) / (qmax - qmin))
    if (np.maximum(scale, np.abs(least)) > np.finfo(np.float32).max).any():
        raise ValueError("the range is wider than float32 scales hold")
    scale = np.where(scale < np.finfo(np.float32).tiny, 1.0, scale)
    return OffsetGrid(scale.astype(np.float32), least.astype(np.float32), qmin, qmax, axis, block)


def fit_offset(x: ArrayLike, bits: int = 8, *, axis: int | None = None, block: int | None = None) -> OffsetGrid:
    """`offset_grid_over` the extremes of `x`, of each channel or block; of no numbers the range is zero.

    Raises:
        ValueError: a number that is not finite, no such axis, or widths other than 2 to 16 bits.
    """
    low, high = extremes(x, Granularity(axis, block))
    return offset_grid_over(low, high, bits, axis=axis, block=block)


def forward_offset(x: ArrayLike, grid: OffsetGrid) -> Floats:
    """`x` rounded to the grid: its own shape and type (float32 of integers). NaN stays NaN.

    Raises:
        ValueError: `x` does not fit the grid.
    """
    x = arguments.numbers(x, "tensor")
    v, scale, offset = _steps(x, grid)
    return (np.clip(np.rint(v), grid.qmin, grid.qmax) * scale + offset).astype(x.dtype)


def backward_offset(gradient: ArrayLike, x: ArrayLike, grid: OffsetGrid) -> tuple[Floats, Floats, Floats]:
    """(gradient of `x`, of the scales, of the offsets), given that of `forward_offset(x, grid)`.

    Inside the range that of `x` passes, that of a scale is round(v) − v with v = (x − β)/s, and that of an offset is
    zero; outside they are 0, qmin or qmax, and 1. Those of scales and offsets have the scales' shape and are summed in
    float64.

    Raises:
        ValueError: `gradient` and `x` have different shapes, or `x` does not fit the grid.
    """
    gradient, x = pair(gradient, x)
    v = _steps(x, grid)[0].astype(np.float64)
    below, above = v < grid.qmin, v > grid.qmax
    step = np.where(below, grid.qmin, np.where(above, grid.qmax, np.rint(v) - v))
    of_x = np.where(below | above, np.zeros((), gradient.dtype), gradient)
    of_offset = grid.summed(np.where(below | above, gradient, 0).astype(np.float64))
    kind = grid.scale.dtype
    return of_x, grid.summed(step * gradient).astype(kind), of_offset.astype(kind)


def backward_range(
    gradient: ArrayLike,
    x: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    bits: int = 8,
    *,
    axis: int | None = None,
    block: int | None = None,
    rounding: bool = True,
) -> tuple[Floats, Floats, Floats]:
    """(gradient of `x`, of `low`, of `high`), given that of `forward_offset(x, offset_grid_over(low, high, …))`.

    Numbers below the range belong to `low`, those above to `high`; inside, the chain rule s = (high − low)/(2^b − 1)
    shares the gradient of the step among both.

    Args:
        bits: of the codes, 2 to 16.
        low, high: numbers, or [channels] if there is an `axis`, or one for each block; `low` below `high`.
        rounding: without it the inside counts for nothing, as TensorFlow's `fake_quant_with_min_max_vars` has it.

    Raises:
        ValueError: a range without a width, `gradient` and `x` of different shapes, or an `x` that does not fit.
    """
    grid = offset_grid_over(low, high, bits, axis=axis, block=block)
    least, most = (arguments.numbers(end, "range") for end in (low, high))
    if not (least < most).all():
        raise ValueError("a range needs a width for its ends to have gradients")
    gradient, x = pair(gradient, x)
    v = _steps(x, grid)[0].astype(np.float64)
    below, above = v < grid.qmin, v > grid.qmax
    inside = np.where(below | above, 0, np.rint(v) - v) / (grid.qmax - grid.qmin) * float(rounding)
    of_low, of_high = (grid.summed(share * gradient) for share in (below - inside, above + inside))
    of_x = np.where(below | above, np.zeros((), gradient.dtype), gradient)
    return of_x, of_low.astype(grid.scale.dtype), of_high.astype(grid.scale.dtype)


def _steps(x: NDArray, grid: OffsetGrid) -> tuple[Floats, Floats, Floats]:
    """(x − β)/s, and scales and offsets against `x`, in its own type."""
    kind = np.result_type(x.dtype, np.float32)
    scale, offset = (grid.spread(x, p).astype(kind) for p in (grid.scale, grid.offset))
    return (x.astype(kind) - offset) / scale, scale, offset

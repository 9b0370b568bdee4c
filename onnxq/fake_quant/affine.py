"""The reference in plain numpy: x̂ = s · (clip(round(x/s) + z, qmin, qmax) − z), rounding half to even.

Sources: Jacob et al., Quantization and Training of Neural Networks (2018), section 3, for the forward pass; Bengio et
al., Estimating or Propagating Gradients (2013), for the straight-through gradient; Esser et al., Learned Step Size
Quantization (2020), equation 3, for the gradient of the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class AffineGrid:
    """Evenly spaced levels, for a whole tensor or for each channel.

    Attributes:
        scale: steps, above zero: a number, or [channels].
        zero_point: code of the number zero, of the scale's shape; zeros if symmetric.
        qmin, qmax: lowest and highest code.
        axis: of the channels; None for one scale.
    """

    scale: Floats
    zero_point: NDArray[np.int64]
    qmin: int
    qmax: int
    axis: int | None = None

    def __post_init__(self) -> None:
        wanted = 0 if self.axis is None else 1
        if self.scale.ndim != wanted or self.zero_point.shape != self.scale.shape:
            raise ValueError(f"scales {self.scale.shape} and zero points {self.zero_point.shape} for axis {self.axis}")
        if not (self.scale > 0).all() or not np.isfinite(self.scale).all():
            raise ValueError("every scale must be finite and above zero")
        if self.qmin >= self.qmax:
            raise ValueError(f"codes {self.qmin}…{self.qmax}: at least 2 are needed")

    def spread(self, x: NDArray, parameter: NDArray) -> NDArray:
        """`parameter` so shaped that it broadcasts against `x`."""
        if self.axis is None:
            return parameter
        return parameter.reshape([-1 if i == self.axis % x.ndim else 1 for i in range(x.ndim)])

    def summed(self, x: NDArray) -> NDArray:
        """`x` summed over everything that shares a scale: the shape of `scale`."""
        if self.axis is None:
            return np.asarray(x.sum())
        return x.sum(axis=tuple(i for i in range(x.ndim) if i != self.axis % x.ndim))


def codes_of(bits: int, *, symmetric: bool) -> tuple[int, int]:
    """Lowest and highest code: as many below zero as above if symmetric, else 0…2^b − 1.

    Raises:
        ValueError: fewer than 2 or more than 16 bits.
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"{bits} bits: choose 2 to 16")
    return (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)


def grid_over(
    low: ArrayLike, high: ArrayLike, bits: int = 8, *, symmetric: bool = True, axis: int | None = None
) -> AffineGrid:
    """The finest grid that covers [low, high] and zero; of step 1 where that is zero alone.

    Args:
        low, high: numbers, or [channels] if there is an `axis`.
    """
    qmin, qmax = codes_of(bits, symmetric=symmetric)
    bottom = np.minimum(np.asarray(low, np.float64), 0)
    top = np.maximum(np.asarray(high, np.float64), 0)
    if symmetric:
        scale = np.maximum(-bottom, top) / qmax
    else:
        scale = (top - bottom) / (qmax - qmin)
    scale = np.where(scale < np.finfo(np.float32).tiny, 1.0, scale)
    zero = np.zeros(scale.shape) if symmetric else np.clip(np.rint(qmin - bottom / scale), qmin, qmax)
    return AffineGrid(scale.astype(np.float32), zero.astype(np.int64), qmin, qmax, axis)


def fit(x: NDArray, bits: int = 8, *, symmetric: bool = True, axis: int | None = None) -> AffineGrid:
    """The grid over the extremes of `x`; over those of each channel if there is an `axis`."""
    others = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    low, high = np.min(x, axis=others, initial=0), np.max(x, axis=others, initial=0)
    return grid_over(low, high, bits, symmetric=symmetric, axis=axis)


def forward(x: Floats, grid: AffineGrid) -> Floats:
    """`x` rounded to the grid: its own shape and type."""
    scale, zero = _parameters(x, grid)
    q = np.clip(np.rint(x / scale) + zero, grid.qmin, grid.qmax)
    return ((q - zero) * scale).astype(x.dtype)


def inside(x: Floats, grid: AffineGrid) -> NDArray[np.bool_]:
    """Where qmin ≤ x/s + z ≤ qmax: the numbers that are rounded, not clipped."""
    scale, zero = _parameters(x, grid)
    v = x / scale + zero
    return (v >= grid.qmin) & (v <= grid.qmax)


def backward(gradient: Floats, x: Floats, grid: AffineGrid) -> Floats:
    """The gradient of `x`, given that of `forward(x, grid)`: passed on inside the range, zero outside."""
    return np.where(inside(x, grid), gradient, np.zeros((), gradient.dtype))


def backward_lsq(gradient: Floats, x: Floats, grid: AffineGrid) -> tuple[Floats, Floats]:
    """(gradient of `x`, gradient of the scales), given that of `forward(x, grid)`.

    The rounding counts as a constant offset: ∂x̂/∂s is round(x/s) − x/s inside the range, qmin − z below and qmax − z
    above. Not multiplied by `gradient_factor`. It has the scales' shape and is summed in float64.
    """
    scale, zero = _parameters(x, grid)
    v = (x / scale).astype(np.float64)
    step = np.where(
        v + zero < grid.qmin, grid.qmin - zero, np.where(v + zero > grid.qmax, grid.qmax - zero, np.rint(v) - v)
    )
    of_scale = grid.summed(step * gradient)
    return backward(gradient, x, grid), of_scale.astype(grid.scale.dtype)


def _parameters(x: NDArray, grid: AffineGrid) -> tuple[Floats, Floats]:
    """Scales and zero points against `x`, in its own type, as kernels compute."""
    scale, zero = grid.spread(x, grid.scale), grid.spread(x, grid.zero_point)
    kind = np.result_type(x.dtype, np.float32)
    return scale.astype(kind), zero.astype(kind)

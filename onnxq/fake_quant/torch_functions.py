"""Fake quantization as autograd functions of torch: the same numbers and gradients as `affine.py`.

torch is needed for this module only: pip install torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from onnxq.fake_quant.affine import AffineGrid
from onnxq.fake_quant.learned_offset import OffsetGrid


class FakeQuantize(torch.autograd.Function):  # type: ignore[misc]
    """x̂ with the straight-through gradient: `FakeQuantize.apply(x, scale, zero_point, qmin, qmax, axis, block)`.

    `scale` and `zero_point` are tensors, of no dimension, [channels], or one for each block; neither gets a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
        qmin: int,
        qmax: int,
        axis: int | None = None,
        block: int | None = None,
    ) -> torch.Tensor:
        s, z = spread(x, scale, axis, block), spread(x, zero, axis, block)
        v = x / s
        ctx.save_for_backward((v + z >= qmin) & (v + z <= qmax))
        return (torch.clamp(torch.round(v) + z, qmin, qmax) - z) * s

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None, None, None, None


class LearnedScale(torch.autograd.Function):  # type: ignore[misc]
    """The same with a gradient for `scale` too (LSQ).

    `LearnedScale.apply(x, scale, zero_point, qmin, qmax, factor, axis, block)`.

    The gradient of the scale is multiplied by `factor`, for which `gradient_factor` is the paper's choice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
        qmin: int,
        qmax: int,
        factor: float = 1.0,
        axis: int | None = None,
        block: int | None = None,
    ) -> torch.Tensor:
        s, z = spread(x, scale, axis, block), spread(x, zero, axis, block)
        v = x / s
        y = torch.round(v).add_(z).clamp_(qmin, qmax).sub_(z).mul_(s)
        v += z
        ctx.save_for_backward(x, y, (v >= qmin).logical_and_(v <= qmax), scale)
        ctx.factor, ctx.groups = factor, (axis, block)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y, inside, scale = ctx.saved_tensors
        # Steps by which the scale moves ŷ, times the scale: of what is clipped ŷ itself, else what rounding adds.
        steps = torch.addcmul(y, x, inside.to(x.dtype), value=-1).mul_(gradient)
        of_scale = summed(steps, *ctx.groups) * ctx.factor / scale
        return gradient * inside, of_scale, None, None, None, None, None, None


class LearnedOffset(torch.autograd.Function):  # type: ignore[misc]
    """Levels s · q + β with a gradient for `scale` and `offset` (LSQ+), as `forward_offset` and `backward_offset`.

    `LearnedOffset.apply(x, scale, offset, qmin, qmax, factor, axis, block)`; `factor` is of both gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        offset: torch.Tensor,
        qmin: int,
        qmax: int,
        factor: float = 1.0,
        axis: int | None = None,
        block: int | None = None,
    ) -> torch.Tensor:
        s, b = spread(x, scale, axis, block), spread(x, offset, axis, block)
        v = (x - b) / s
        ctx.save_for_backward(v)
        ctx.bounds, ctx.factor, ctx.groups = (qmin, qmax), factor, (axis, block)
        return torch.clamp(torch.round(v), qmin, qmax) * s + b

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (v,), (qmin, qmax) = ctx.saved_tensors, ctx.bounds
        outside = (v < qmin) | (v > qmax)
        step = torch.where(outside, torch.clamp(v, qmin, qmax), torch.round(v) - v) * gradient
        of_scale, of_offset = (summed(part, *ctx.groups) * ctx.factor for part in (step, gradient * outside))
        return gradient * ~outside, of_scale, of_offset, None, None, None, None, None


def fake_quantize(x: torch.Tensor, grid: AffineGrid | OffsetGrid) -> torch.Tensor:
    """`FakeQuantize`, or of a grid with offsets `LearnedOffset`, with the parameters of a numpy grid."""
    scale = torch.from_numpy(np.asarray(grid.scale)).to(x)
    if isinstance(grid, OffsetGrid):
        offset = torch.from_numpy(np.asarray(grid.offset)).to(x)
        return LearnedOffset.apply(x, scale, offset, grid.qmin, grid.qmax, 1.0, grid.axis, grid.block)
    zero = torch.from_numpy(np.asarray(grid.zero_point)).to(x)
    return FakeQuantize.apply(x, scale, zero, grid.qmin, grid.qmax, grid.axis, grid.block)


def spread(x: torch.Tensor, parameter: torch.Tensor, axis: int | None, block: int | None) -> torch.Tensor:
    """The parameter so shaped that it broadcasts against `x`."""
    if axis is None:
        return parameter
    if block is None:
        return parameter.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])
    length = x.shape[axis]
    return parameter.repeat_interleave(min(block, max(1, length)), dim=axis).narrow(axis, 0, length)


def summed(x: torch.Tensor, axis: int | None, block: int | None) -> torch.Tensor:
    """`x` summed over everything that shares a scale."""
    if axis is None:
        return x.sum()
    axis %= x.dim()
    if block is None:
        others = [i for i in range(x.dim()) if i != axis]
        return x.sum(dim=others) if others else x
    block = min(block, max(1, x.shape[axis]))
    if missing := -x.shape[axis] % block:
        more = list(x.shape)
        more[axis] = missing
        x = torch.cat([x, x.new_zeros(more)], dim=axis)
    return x.unflatten(axis, (x.shape[axis] // block, block)).sum(dim=axis + 1)

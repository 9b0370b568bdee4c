"""Fake quantization as autograd functions of torch: the same numbers and gradients as `affine.py`.

torch is needed for this module only: pip install torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from onnxq.fake_quant.affine import AffineGrid


class FakeQuantize(torch.autograd.Function):  # type: ignore[misc]
    """x̂ with the straight-through gradient: `FakeQuantize.apply(x, scale, zero_point, qmin, qmax, axis)`.

    `scale` and `zero_point` are tensors, of no dimension or [channels]; neither gets a gradient.
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
    ) -> torch.Tensor:
        s, z = _spread(x, scale, axis), _spread(x, zero, axis)
        v = x / s
        ctx.save_for_backward((v + z >= qmin) & (v + z <= qmax))
        return (torch.clamp(torch.round(v) + z, qmin, qmax) - z) * s

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None, None, None


class LearnedScale(torch.autograd.Function):  # type: ignore[misc]
    """The same with a gradient for `scale` too (LSQ).

    `LearnedScale.apply(x, scale, zero_point, qmin, qmax, factor, axis)`.

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
    ) -> torch.Tensor:
        s, z = _spread(x, scale, axis), _spread(x, zero, axis)
        ctx.save_for_backward(x / s, z)
        ctx.bounds, ctx.factor, ctx.axis = (qmin, qmax), factor, axis
        return (torch.clamp(torch.round(x / s) + z, qmin, qmax) - z) * s

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        v, z = ctx.saved_tensors
        qmin, qmax = ctx.bounds
        below, above = v + z < qmin, v + z > qmax
        step = torch.where(below, qmin - z, torch.where(above, qmax - z, torch.round(v) - v)) * gradient
        others = [i for i in range(v.dim()) if ctx.axis is not None and i != ctx.axis % v.dim()]
        of_scale = step.sum() if ctx.axis is None else step.sum(dim=others) if others else step
        return gradient * ~(below | above), of_scale * ctx.factor, None, None, None, None, None


def fake_quantize(x: torch.Tensor, grid: AffineGrid) -> torch.Tensor:
    """`FakeQuantize` with the parameters of a numpy grid."""
    scale = torch.from_numpy(np.asarray(grid.scale)).to(x)
    zero = torch.from_numpy(np.asarray(grid.zero_point)).to(x)
    return FakeQuantize.apply(x, scale, zero, grid.qmin, grid.qmax, grid.axis)


def _spread(x: torch.Tensor, parameter: torch.Tensor, axis: int | None) -> torch.Tensor:
    if axis is None:
        return parameter
    return parameter.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])

"""Codes are whole numbers in float tensors, so that gradients pass by the straight-through rule."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onnxq.training.graph.operators import Call, operator

_LIMITS = {
    ir.DataType.UINT2: (0, 3),
    ir.DataType.INT2: (-2, 1),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT16: (0, 65535),
    ir.DataType.INT16: (-32768, 32767),
}


class _RoundedCodes(torch.autograd.Function):  # type: ignore[misc]
    """clip(round(v) + z), whose gradient is 1 inside and 0 outside."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
        codes = torch.round(v) + zero
        ctx.save_for_backward((codes >= low) & (codes <= high))
        return codes.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None


def _spread(call: Call, parameter: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point against `x`: one, one a channel, or one a block."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis = call.get("axis", 1) % x.ndim
    if parameter.ndim == 1:
        return parameter.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    block = call.get("block_size", 0) or -(-x.shape[axis] // parameter.shape[axis])
    return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


@operator("QuantizeLinear", constants=[2])
def quantize_linear(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    given = call.types[2] if zero is not None else ir.DataType(call.get("output_dtype", 0) or ir.DataType.UINT8)
    if given not in _LIMITS:
        raise call.refuse("codes that are no integers of 2 to 16 bits")
    low, high = _LIMITS[given]
    z = x.new_zeros(()) if zero is None else _spread(call, zero, x).to(x.dtype)
    return _RoundedCodes.apply(x / _spread(call, scale, x), z, low, high)


@operator("DequantizeLinear", constants=[2])
def dequantize_linear(call: Call, codes: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    x = codes.to(scale.dtype)
    z = 0 if zero is None else _spread(call, zero, x).to(scale.dtype)
    return (x - z) * _spread(call, scale, x)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((-low / scale).clamp(0, 255)).detach()
    return _RoundedCodes.apply(x / scale, zero, 0, 255), scale, zero


@operator("MatMulInteger")
def matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    a, b = a.to(torch.float32), b.to(torch.float32)
    if a_zero is not None:
        a = a - (a_zero.reshape(-1, 1) if a_zero.ndim else a_zero).to(a.dtype)
    if b_zero is not None:
        b = b - b_zero.to(b.dtype)
    return torch.matmul(a, b)

"""The largest or the mean of windows."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call, operator
from onnxq.training.graph.operators.convolutions import around, padded

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_MEAN = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@operator("MaxPool")
def max_pool(call: Call, x: Tensor) -> Tensor:
    if call.outputs > 1:
        raise call.refuse("the places of the largest numbers are asked for")
    kernel, strides, dilations, pads, _ = _window(call, x)
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    rows = padded(x, pads, least)
    found = _MAX[len(kernel)](rows if rows.is_floating_point() else rows.float(), kernel, strides, 0, dilations)
    return found.to(x.dtype)


@operator("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    kernel, strides, dilations, pads, real = _window(call, x)
    if any(apart > 1 for apart in dilations):
        return _dilated_mean(call, x, kernel, strides, dilations, pads)
    pool = _MEAN[len(kernel)]
    sums = pool(padded(x, pads), kernel, strides)
    if not any(pads):
        return sums
    # With what lies around counted, it is what the model says of it; what rounding up adds never counts.
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if call.get("count_include_pad", 0):
        ones = padded(ones, real, 1.0)
        pads = [most - given for most, given in zip(pads, real, strict=True)]
    return sums / pool(padded(ones, pads), kernel, strides)


def _dilated_mean(
    call: Call, x: Tensor, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]
) -> Tensor:
    if len(kernel) > 3 or call.get("ceil_mode", 0):
        raise call.refuse("dilated means of so many axes, or rounded up")
    convolve = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[len(kernel)]
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype, device=x.device)
    rows = padded(x, pads)
    sums = convolve(rows.reshape(-1, 1, *rows.shape[2:]), ones, None, strides, 0, dilations)
    inside = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    inside = padded(inside, pads, float(call.get("count_include_pad", 0)))
    found = sums / convolve(inside, ones, None, strides, 0, dilations)
    return found.reshape(*x.shape[:2], *found.shape[2:])


def _window(call: Call, x: Tensor) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Kernel, strides, dilations, what lies around with what rounding up adds behind, and without that."""
    kernel = call.get("kernel_shape")
    n = len(kernel)
    if n not in _MAX:
        raise call.refuse(f"windows over {n} axes")
    strides, dilations = call.get("strides") or [1] * n, call.get("dilations") or [1] * n
    real = around(call, list(x.shape[2:]), kernel, strides, dilations)
    pads = list(real)
    if call.get("ceil_mode", 0):
        for i in range(n):
            free = x.shape[2 + i] + pads[i] + pads[n + i] - (kernel[i] - 1) * dilations[i] - 1
            steps = -(-free // strides[i])
            if steps * strides[i] >= x.shape[2 + i] + pads[i]:  # a window that begins behind everything is none
                steps -= 1
            pads[n + i] += max(0, steps * strides[i] - free)
    return kernel, strides, dilations, pads, real


@operator("GlobalAveragePool")
def global_average_pool(call: Call, x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(call: Call, x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@operator("LpPool")
def lp_pool(call: Call, x: Tensor) -> Tensor:
    kernel, strides, dilations, pads, _ = _window(call, x)
    p, pool = call.get("p", 2), _MEAN[len(kernel)]
    if any(apart > 1 for apart in dilations):
        raise call.refuse("dilated norms")
    return (pool(padded(x, pads).abs() ** p, kernel, strides) * math.prod(kernel)) ** (1 / p)


@operator("GlobalLpPool")
def global_lp_pool(call: Call, x: Tensor) -> Tensor:
    p = call.get("p", 2)
    return (x.abs() ** p).sum(tuple(range(2, x.ndim)), keepdim=True) ** (1 / p)

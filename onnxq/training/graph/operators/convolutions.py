"""Convolutions, and their transposes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call, operator

_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def around(call: Call, size: list[int], kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    """How many numbers lie before each axis and, in the second half, behind it."""
    n, auto = len(kernel), call.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return list(call.get("pads") or [0] * 2 * n)
    if auto == "VALID":
        return [0] * 2 * n
    before, behind = [], []
    for length, k, step, apart in zip(size, kernel, strides, dilations, strict=True):
        wanted = max(0, (-(-length // step) - 1) * step + (k - 1) * apart + 1 - length)
        less = wanted // 2
        before.append(wanted - less if auto == "SAME_LOWER" else less)
        behind.append(less if auto == "SAME_LOWER" else wanted - less)
    return before + behind


def padded(x: Tensor, pads: list[int], value: float = 0.0) -> Tensor:
    """`x` with as many numbers around its last axes."""
    n = len(pads) // 2
    if not any(pads):
        return x
    flat = [each for i in reversed(range(n)) for each in (pads[i], pads[n + i])]
    return functional.pad(x, flat, value=value)


@operator("Conv")
def conv(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    n = w.ndim - 2
    if n not in _FORWARD:
        raise call.refuse(f"convolutions over {n} axes")
    strides, dilations = call.get("strides") or [1] * n, call.get("dilations") or [1] * n
    pads = around(call, list(x.shape[2:]), list(w.shape[2:]), strides, dilations)
    even = pads[:n] == pads[n:]
    x = x if even else padded(x, pads)
    return _FORWARD[n](x, w, bias, strides, pads[:n] if even else 0, dilations, call.get("group", 1))


@operator("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    n = w.ndim - 2
    if n not in _TRANSPOSED:
        raise call.refuse(f"convolutions over {n} axes")
    strides, dilations = call.get("strides") or [1] * n, call.get("dilations") or [1] * n
    extra = list(call.get("output_padding") or [0] * n)
    for i, length in enumerate((call.get("output_shape") or [])[-n:]):  # longer than all there is: more behind
        whole = strides[i] * (x.shape[2 + i] - 1) + (w.shape[2 + i] - 1) * dilations[i] + 1
        extra[i] = max(extra[i], length - whole)
    pads = _cut_off(call, x, w, strides, dilations, extra)
    # Whole, with what `output_padding` adds behind, and then cut: torch takes the same cut on both sides only.
    found = _TRANSPOSED[n](x, w, bias, strides, 0, 0, call.get("group", 1), dilations)
    if any(extra):
        around_it = [each for more in reversed(extra) for each in (0, more)]
        more = functional.pad(found, around_it)
        if bias is not None:  # there is nothing but bias behind the last row
            inside = functional.pad(torch.ones_like(found[:1, :1]), around_it)
            more = more + (1 - inside) * bias.reshape(1, -1, *[1] * n)
        found = more
    for i in range(n):
        length = found.shape[2 + i] - pads[i] - pads[n + i]
        found = found.narrow(2 + i, max(0, pads[i]), min(length, found.shape[2 + i]))
    return found


def _cut_off(call: Call, x: Tensor, w: Tensor, strides: list[int], dilations: list[int], extra: list[int]) -> list[int]:
    """How much of each end of each axis does not belong to the output."""
    n, wanted, auto = w.ndim - 2, call.get("output_shape"), call.get("auto_pad", "NOTSET")
    if wanted is None and auto in ("NOTSET", "", "VALID"):
        return list(call.get("pads") or [0] * 2 * n)
    before, behind = [], []
    for i in range(n):
        whole = strides[i] * (x.shape[2 + i] - 1) + extra[i] + (w.shape[2 + i] - 1) * dilations[i] + 1
        length = x.shape[2 + i] * strides[i] if wanted is None else wanted[-n:][i]
        gone = max(0, whole - length)
        less = gone // 2
        before.append(gone - less if auto == "SAME_LOWER" else less)
        behind.append(less if auto == "SAME_LOWER" else gone - less)
    return before + behind

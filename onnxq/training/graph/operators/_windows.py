"""What convolutions and pools share: the numbers that lie around."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call


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

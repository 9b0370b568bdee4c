"""Many numbers become one."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from onnxq.training.graph.operators import Call, enter_one

Axes = tuple[int, ...]


def _prod(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


_REDUCTIONS: dict[str, Callable[[Tensor, Axes, bool], Tensor]] = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep).sqrt(),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _prod,
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
}


def _reduce(
    function: Callable[[Tensor, Axes, bool], Tensor], call: Call, x: Tensor, axes: Tensor | None = None
) -> Tensor:
    given = call.numbers("axes", axes)
    if not given and call.get("noop_with_empty_axes", 0):
        return x
    over = tuple(axis % x.ndim for axis in given) if given else tuple(range(x.ndim))
    return function(x, over, bool(call.get("keepdims", 1))).to(x.dtype) if over else x


for _name, _function in _REDUCTIONS.items():
    enter_one(_name, functools.partial(_reduce, _function), constants=[1])

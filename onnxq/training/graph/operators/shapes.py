"""Operators that make, move and copy numbers, and ask how many there are."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call, as_list, operator
from onnxq.training.graph.types import as_torch, torch_type


@operator("Constant")
def constant(call: Call) -> Tensor:
    for name, value in call.attributes.items():
        if name == "value":
            return as_torch(value)
        if name in ("value_float", "value_floats"):
            return torch.tensor(value, dtype=torch.float32)
        if name in ("value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.int64)
    raise call.refuse("its value is neither numbers nor a tensor")


@operator("ConstantOfShape", gradient=False)
def constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    given = call.get("value")
    value = torch.zeros(1) if given is None else as_torch(given)
    return torch.full(as_list(shape), value.reshape(-1)[0].item(), dtype=value.dtype, device=shape.device)


@operator("Shape", gradient=False)
def shape_of(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(list(x.shape)[slice(call.get("start", 0), call.get("end"))], dtype=torch.int64)


@operator("Size", gradient=False)
def size(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


@operator("Reshape", constants=[1])
def reshape(call: Call, x: Tensor, shape: Tensor | None = None) -> Tensor:
    wanted = call.numbers("shape", shape) or []
    if not call.get("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


@operator("Flatten")
def flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Transpose")
def transpose(call: Call, x: Tensor) -> Tensor:
    return x.permute(call.get("perm") or list(reversed(range(x.ndim))))


@operator("Squeeze", constants=[1])
def squeeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = call.numbers("axes", axes)
    gone = {axis % x.ndim for axis in given} if given is not None else {i for i, n in enumerate(x.shape) if n == 1}
    return x.reshape([n for i, n in enumerate(x.shape) if i not in gone])


@operator("Unsqueeze", constants=[1])
def unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    new = call.numbers("axes", axes) or []
    rank = x.ndim + len(new)
    for axis in sorted(axis % rank for axis in new):
        x = x.unsqueeze(axis)
    return x


@operator("Concat")
def concat(call: Call, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, call.get("axis", 1))


@operator("Split", constants=[1])
def split(call: Call, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis, given = call.get("axis", 0), call.numbers("split", sizes)
    if given is None:
        n, parts = x.shape[axis], call.get("num_outputs") or call.outputs
        most = -(-n // parts)
        given = [max(0, min(most, n - i * most)) for i in range(parts)]
    return torch.split(x, given, axis)


@operator("Slice", constants=[1, 2, 3, 4])
def slice_(
    call: Call,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    first, last = call.numbers("starts", starts) or [], call.numbers("ends", ends) or []
    along = call.numbers("axes", axes) or list(range(len(first)))
    by = as_list(steps) if steps is not None else [1] * len(first)
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        places = range(*slice(start, _end(end, step), step).indices(x.shape[axis]))
        if step == 1:
            x = x.narrow(axis, places.start, len(places))
        else:
            x = x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))
    return x


def _end(end: int, step: int) -> int | None:
    """Going down to the very first, an end lies as far below zero as can be, which Python takes for None."""
    return None if step < 0 and end < -(1 << 30) else end


@operator("Expand", constants=[1])
def expand(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, as_list(shape)))


@operator("Tile", constants=[1, 2])
def tile(call: Call, x: Tensor, repeats: Tensor, axis: Tensor | None = None) -> Tensor:
    if axis is None:
        return x.repeat(as_list(repeats))
    return x.repeat([int(repeats) if i == int(axis) else 1 for i in range(x.ndim)])


@operator("Pad", constants=[1, 2, 3])
def pad(
    call: Call, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    given = call.numbers("pads", pads) or call.get("paddings")
    filling = call.get("value", 0.0) if value is None else value.item()
    along = [axis % x.ndim for axis in as_list(axes)] if axes is not None else list(range(x.ndim))
    n, mode = len(along), call.get("mode", "constant")
    for axis, before, behind in zip(along, given[:n], given[n:], strict=True):
        if mode == "constant" or before < 0 or behind < 0:
            around = [0, 0] * (x.ndim - 1 - axis) + [before, behind]
            x = functional.pad(x, around, value=filling)
        elif before or behind:
            x = x.index_select(axis, _mirrored(x.shape[axis], before, behind, mode).to(x.device))
    return x


def _mirrored(n: int, before: int, behind: int, mode: str) -> Tensor:
    """From where each number of an axis of length `n` is taken when it is padded."""
    places = torch.arange(-before, n + behind)
    if mode == "edge":
        return places.clamp(0, n - 1)
    if mode == "wrap":
        return places % n
    period = max(1, 2 * (n - 1))
    places = places % period
    return torch.where(places >= n, period - places, places)


@operator("Range", gradient=False)
def range_(call: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device)


@operator("EyeLike", gradient=False)
def eye_like(call: Call, x: Tensor) -> Tensor:
    kind = x.dtype if call.get("dtype") is None else torch_type(ir.DataType(call.get("dtype")))
    found = torch.ones(x.shape, dtype=kind, device=x.device)
    k = call.get("k", 0)
    return torch.triu(torch.tril(found, k), k)


@operator("Trilu", constants=[1])
def trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor:
    diagonal = 0 if k is None else int(k)
    return torch.triu(x, diagonal) if call.get("upper", 1) else torch.tril(x, diagonal)


@operator("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    b, (n, c, h, w) = call.get("blocksize"), x.shape
    if call.get("mode", "DCR") == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    b, (n, c, h, w) = call.get("blocksize"), x.shape
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b**2, h // b, w // b)


@operator("ReverseSequence", constants=[1])
def reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = call.get("time_axis", 0), call.get("batch_axis", 1)
    turned = x.movedim((batch, time), (0, 1))
    rows = [torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(turned, as_list(lengths), strict=True)]
    return torch.stack(rows).movedim((0, 1), (batch, time))

"""Looking numbers up, putting them elsewhere, and finding out where the largest lie."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxq.training.graph.operators import Call, operator


def _places(indices: Tensor, n: int) -> Tensor:
    """Indices from the end count back from `n`."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + n, indices)


@operator("Gather", constants=[1])
def gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    places = _places(indices, x.shape[axis]).to(x.device)
    found = x.index_select(axis, places.reshape(-1))
    return found.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@operator("GatherElements", constants=[1])
def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    return torch.gather(x, axis, _places(indices, x.shape[axis]))


@operator("GatherND", constants=[1])
def gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    batch = call.get("batch_dims", 0)
    if not batch:
        return x[tuple(_places(part, n) for part, n in zip(indices.unbind(-1), x.shape, strict=False))]
    lead = x.shape[:batch]
    rows, where = x.reshape(-1, *x.shape[batch:]), indices.reshape(-1, *indices.shape[batch:])
    found = [row[tuple(each.to(torch.int64).unbind(-1))] for row, each in zip(rows, where, strict=True)]
    return torch.stack(found).reshape([*lead, *found[0].shape])


_REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("Scatter", "ScatterElements", constants=[1])
def scatter(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, how = call.get("axis", 0) % x.ndim, call.get("reduction", "none")
    places = _places(indices, x.shape[axis])
    if how == "none":
        return torch.scatter(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _REDUCED[how])


@operator("ScatterND", constants=[1])
def scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    where = tuple(_places(part, n) for part, n in zip(indices.unbind(-1), x.shape, strict=False))
    how = call.get("reduction", "none")
    if how in ("none", "add"):
        return x.index_put(where, updates, accumulate=how == "add")
    raise call.refuse(f"reduction '{how}'")


@operator("TopK", constants=[1])
def top_k(call: Call, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    count = call.get("k") if k is None else int(k)
    axis = call.get("axis", -1)
    found = torch.sort(x, dim=axis, descending=bool(call.get("largest", 1)), stable=True)
    return found.values.narrow(axis, 0, count), found.indices.narrow(axis, 0, count)


@operator("ArgMax", gradient=False)
def argmax(call: Call, x: Tensor) -> Tensor:
    return _first_of(call, x, largest=True)


@operator("ArgMin", gradient=False)
def argmin(call: Call, x: Tensor) -> Tensor:
    return _first_of(call, x, largest=False)


def _first_of(call: Call, x: Tensor, *, largest: bool) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    is_last = bool(call.get("select_last_index", 0))
    x = torch.flip(x, [axis]) if is_last else x
    order = torch.sort(x, dim=axis, descending=largest, stable=True).indices
    found = order.narrow(axis, 0, 1)
    found = x.shape[axis] - 1 - found if is_last else found
    return found if call.get("keepdims", 1) else found.squeeze(axis)


@operator("NonZero", gradient=False)
def non_zero(call: Call, x: Tensor) -> Tensor:
    return torch.nonzero(x).T


@operator("Compress", constants=[1])
def compress(call: Call, x: Tensor, condition: Tensor) -> Tensor:
    axis = call.get("axis")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return x.index_select(axis, torch.nonzero(condition.reshape(-1)).reshape(-1))


@operator("OneHot", gradient=False, constants=[0, 1, 2])
def one_hot(call: Call, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    n, axis = int(depth), call.get("axis", -1)
    axis = axis % (indices.ndim + 1)
    where = indices.to(torch.int64)
    where = torch.where(where < 0, where + n, where).unsqueeze(axis)
    steps = torch.arange(n, device=indices.device).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return torch.where(where == steps, values[1], values[0])


@operator("Unique", gradient=False)
def unique(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    if call.outputs > 1 or not call.get("sorted", 1):
        raise call.refuse("only the sorted numbers of it are known")
    return (torch.unique(x, dim=call.get("axis")),)

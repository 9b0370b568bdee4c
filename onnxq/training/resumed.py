"""What a checkpoint says, compared with what training needs before any of it is taken over: it may be a stranger's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct

from onnxq.files import schemas

#: Of each parameter, in Adam's own words.
_MOMENTS = ("exp_avg", "exp_avg_sq")


class HistoryFile(Struct, forbid_unknown_fields=True):
    """As `loop.History`."""

    losses: list[tuple[schemas.Count, float]]
    best: float
    best_step: schemas.Count
    skipped: schemas.Count
    done: schemas.Count
    why: str


class _File(Struct, forbid_unknown_fields=True):
    student: dict[str, Any]
    best: dict[str, Any]
    optimizer: dict[str, Any]
    history: HistoryFile
    in_row: Annotated[int, Meta(ge=0, le=1 << 16)]


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from.

    Attributes:
        student, best: everything that learns, as it was and as it was best.
        optimizer: for `load_state_dict`; rates follow from the settings, and are not asked of the file.
    """

    student: dict[str, torch.Tensor]
    best: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    history: HistoryFile
    in_row: int


def resumed(state: object, learns: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, steps: int) -> Resumed:
    """
    Args:
        learns: what a state of the student looks like.
        steps: that there are at most.

    Raises:
        ValueError: it is none; the text says where.
    """
    _require_no_tensors(state)
    found = schemas.checked(state, _File)
    if found.history.done > steps or not found.history.losses:
        raise ValueError(f"history: {found.history.done} steps of {steps} are done")
    _require_possible(found.history)
    for name, each in (("student", found.student), ("best", found.best)):
        if each.keys() != learns.keys():
            raise ValueError(f"{name}: it is of other parameters")
        for key, x in each.items():
            _require(x, learns[key], f"{name}: '{key}'")
    return Resumed(found.student, found.best, _optimizer(found.optimizer, optimizer), found.history, found.in_row)


def _require_possible(history: HistoryFile) -> None:
    """
    Raises:
        ValueError: no run comes to such losses: the best is one of them, and they were seen one after the other.
    """
    looks = [at for at, _ in history.losses]
    is_best = (history.best_step, history.best) in history.losses and math.isfinite(history.best)
    if looks != sorted({*looks}) or looks[-1] > history.done or not is_best:
        raise ValueError("history: no run comes to such losses")
    if any(loss < history.best for _, loss in history.losses):
        raise ValueError("history: a loss is less than the best of them")


def _require_no_tensors(state: object) -> None:
    """Refuse tensors where numbers or tables belong: msgspec would ask them for members that they do not have."""
    table = state if isinstance(state, dict) else {"state": state}
    history = table.get("history")
    parts = [*table.values(), *(history.values() if isinstance(history, dict) else [])]
    losses = [row for part in parts if isinstance(part, (list, tuple)) for row in part]
    every = [*parts, *losses, *(x for row in losses if isinstance(row, (list, tuple)) for x in row)]
    if any(isinstance(x, torch.Tensor) for x in every):
        raise ValueError("expected object, got a tensor")


def _optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = state.get("state")
    if not isinstance(moments, dict) or not set(moments) <= set(range(len(parameters))):
        raise ValueError("optimizer: it is of other parameters")
    for i, each in moments.items():
        if not isinstance(each, dict) or set(each) != {"step", *_MOMENTS}:
            raise ValueError(f"optimizer: {i} is not what Adam keeps")
        _require(each["step"], torch.zeros(()), f"optimizer: the step of {i}")
        for word in _MOMENTS:
            _require(each[word], parameters[i], f"optimizer: {word} of {i}")
        if float(each["step"]) < 0 or bool((each["exp_avg_sq"] < 0).any()):
            raise ValueError(f"optimizer: {i} has negative numbers where there are none")
    return {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}


def _require(x: object, like: torch.Tensor, what: str) -> None:
    """Refuse what is no plain tensor of finite numbers of this shape, before anything is worked out with it."""
    if not isinstance(x, torch.Tensor) or type(x) is not torch.Tensor or not _is_plain(x):
        raise ValueError(f"{what} is not numbers of shape {list(like.shape)}")
    # Each number needs memory of its own: torch's fused Adam writes as if it had it.
    if x.shape != like.shape or x.dtype != like.dtype or not (x.is_contiguous() or x.stride() == like.stride()):
        raise ValueError(f"{what} is not numbers of shape {list(like.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{what} holds numbers that are infinite or none at all")


def _is_plain(x: torch.Tensor) -> bool:
    return x.layout == torch.strided and x.device.type == "cpu" and not x.is_quantized and not x.is_neg()

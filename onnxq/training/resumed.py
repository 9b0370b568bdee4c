"""What a checkpoint says, compared with what training needs before any of it is taken over: it may be a stranger's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onnxq.errors import BadData
from onnxq.training.checkpoint import MOMENTS, HistoryFile, Kept


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


def resumed(kept: Kept, learns: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, steps: int) -> Resumed:
    """
    Args:
        learns: what a state of the student looks like.
        steps: that there are at most.

    Raises:
        ValueError: it is none; the text says where.
    """
    said = kept.said
    if said.history.done > steps or not said.history.losses:
        raise ValueError(f"history: {said.history.done} steps of {steps} are done")
    _require_possible(said.history)
    if set(said.names) != set(learns) or len(said.names) != len(learns):
        raise ValueError("it is of other parameters")
    student, best = (
        {name: _taken(kept, f"{part}.{i}", learns[name]) for i, name in enumerate(said.names)}
        for part in ("student", "best")
    )
    return Resumed(student, best, _optimizer(kept, optimizer), said.history, said.in_row)


def _require_possible(history: HistoryFile) -> None:
    """
    Raises:
        ValueError: no run comes to such losses: the best is one of them, and they were seen one after the other.
    """
    looks = [at for at, _ in history.losses]
    is_best = (history.best_step, history.best) in history.losses
    if looks != sorted({*looks}) or looks[-1] > history.done or not is_best:
        raise ValueError("history: no run comes to such losses")
    if not all(loss >= history.best for _, loss in history.losses):  # nor is any NaN
        raise ValueError("history: a loss is less than the best of them")


def _optimizer(kept: Kept, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not set(kept.said.moved) <= set(range(len(parameters))):
        raise ValueError("optimizer: it is of other parameters")
    state = {}
    for i in kept.said.moved:
        like = {word: torch.zeros(()) if word == "step" else parameters[i] for word in MOMENTS}
        state[i] = {word: _taken(kept, f"{word}.{i}", each) for word, each in like.items()}
        if any(bool((state[i][word] < 0).any()) for word in ("step", "exp_avg_sq")):
            raise ValueError(f"optimizer: {i} has negative numbers where there are none")
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def _taken(kept: Kept, name: str, like: torch.Tensor) -> torch.Tensor:
    """A copy of an array, of finite numbers in the shape and type of `like`."""
    try:
        x = kept.arrays[name]
    except KeyError:
        raise ValueError(f"'{name}' is not in it") from None
    except BadData as error:
        raise ValueError(str(error)) from None
    if x.shape != tuple(like.shape) or x.dtype != like.detach().cpu().numpy().dtype:
        raise ValueError(f"'{name}' is not numbers of shape {list(like.shape)}")
    if not np.isfinite(x).all():
        raise ValueError(f"'{name}' holds numbers that are infinite or none at all")
    return torch.from_numpy(np.array(x))

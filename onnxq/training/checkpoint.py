"""What training has reached, in a file, from which an interrupted run goes on bit by bit as it would have gone.

It is an npz file, of arrays alone: what torch itself saves is a pickle, which a stranger can make of anything. What it
says is compared with what training needs before any of it is taken over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray

from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.errors import BadData, BadRecipe
from onnxq.files import limits, schemas, staging

#: Of each parameter, in Adam's own words.
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_SAID = "said"


class HistoryFile(Struct, forbid_unknown_fields=True):
    """As `loop.History`."""

    losses: list[tuple[schemas.Count, float]]
    best: float
    best_step: schemas.Count
    skipped: schemas.Count
    done: schemas.Count
    why: str


class Said(Struct, forbid_unknown_fields=True):
    """What a checkpoint says of its arrays.

    Attributes:
        key: what the run is of.
        names: of everything that learns: `student.0` and `best.0` are the first one.
        moved: numbers of those that Adam has moments of, as `exp_avg.0`.
    """

    kind: Literal["onnxq training"]
    key: str
    names: list[str]
    moved: list[schemas.Count]
    history: HistoryFile
    in_row: Annotated[int, Meta(ge=0, le=1 << 16)]


@dataclass(frozen=True)
class Kept:
    """A checkpoint that was opened; arrays are read when they are asked for."""

    said: Said
    arrays: Mapping[str, NDArray]


class Checkpoint:
    """The file of one run.

    Args:
        about: what the run is of, in texts; a file of another run is refused.
    """

    def __init__(self, path: Path, *about: str) -> None:
        self.path = path
        self._key = hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def save(self, state: Mapping[str, Any]) -> None:
        """
        Args:
            state: tensors that learn, as `student`, and where they were `best`, by name; `optimizer`, its state by the
                number of a parameter; `history` and `in_row`.

        Raises:
            BadOutput: it cannot be written.
        """
        moved, names = state["optimizer"]["state"], list(state["student"])
        arrays = {f"{part}.{i}": state[part][name] for part in ("student", "best") for i, name in enumerate(names)}
        arrays |= {f"{word}.{i}": moments[word] for i, moments in moved.items() for word in MOMENTS}
        said = Said("onnxq training", self._key, names, list(moved), HistoryFile(**state["history"]), state["in_row"])
        content = {name: tensor.detach().cpu().numpy() for name, tensor in arrays.items()}
        content[_SAID] = np.frombuffer(json.dumps(msgspec.to_builtins(said)).encode(), np.uint8)
        with staging.whole(self.path) as staged, staged.open("xb") as file:
            np.savez(file, **content)

    def load(self) -> Kept | None:
        """What was saved; None where nothing was.

        Raises:
            BadRecipe: the file is of something else, or of another run.
        """
        if not self.path.exists():
            return None
        found = _read(self.path)
        if found is None:
            raise BadRecipe(f"'{self.path}' is not a checkpoint of 'onnxq train': name another by --checkpoint")
        if found.said.key != self._key:
            raise BadRecipe(
                f"the checkpoint '{self.path}' is of another model, other data or other settings; delete it, or name "
                "another by --checkpoint"
            )
        return found

    def damaged(self, why: str) -> BadRecipe:
        """That what is in the file is not what a run keeps."""
        return BadRecipe(f"the checkpoint '{self.path}' is damaged ({why}): delete it, or name another by --checkpoint")

    def remove(self) -> None:
        """It is not needed any more."""
        self.path.unlink(missing_ok=True)


def is_checkpoint(path: Path) -> bool:
    """Whether a file that is there is one."""
    return _read(path) is not None


def _read(path: Path) -> Kept | None:
    try:
        arrays = open_checkpoint(path)
        text = arrays[_SAID].tobytes().decode()
        return Kept(schemas.checked(limits.parse_json(text), Said), arrays)
    except (BadData, KeyError, ValueError):
        return None


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

"""How far training came, in a file from which another run goes on bit for bit: adapters, moments of AdamW, losses."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.algorithms.low_rank import Factors
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.errors import BadData
from onnxq.files import limits, schemas
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.learning.fit import LARGEST, MOST_LOSS, Fit, State

#: What of AdamW's state is kept of each matrix.
_MOMENTS = ("mean", "square")
_SAID = "progress"


def save(path: Path, fit: Fit, key: str) -> None:
    """Write how far `fit` came, in the place of what is there.

    Args:
        key: what must be the same for a run to go on.

    Raises:
        BadOutput: it cannot be written.
    """
    state, arrays = fit.state, dict[str, NDArray]()
    for i, parameter in enumerate(fit.adapted.parameters()):
        arrays[f"now.{i}"] = parameter.detach().cpu().numpy()
        for word, moment in zip(_MOMENTS, fit.moments[i], strict=False):
            arrays[f"{word}.{i}"] = moment.cpu().numpy()
    for name, factors in (state.best or fit.adapted.adapter()).factors.items():
        index = list(fit.adapted.adapters).index(name)
        arrays[f"best.{2 * index}"], arrays[f"best.{2 * index + 1}"] = factors
    said = {"key": key, "step": state.step, "skipped": state.skipped, "losses": list(state.losses.items())}
    said["updates"] = fit.updates
    arrays[_SAID] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    write_arrays(path, ((name, functools.partial(np.asarray, x)) for name, x in arrays.items()), replace=True)


def load(path: Path, fit: Fit, key: str) -> None:
    """Let `fit` go on where the file says.

    Raises:
        BadData: it is damaged, or of another run.
    """
    stored = open_checkpoint(path)
    try:
        said = schemas.checked(limits.parse_json(bytes(stored[_SAID]).decode()), schemas.TrainingFile)
    except (KeyError, ValueError) as error:
        raise BadData(f"'{path}' does not say how far a training came: {error}") from None
    if said.key != key:
        raise BadData(f"'{path}' is of a training with another model, samples or options: delete it to begin anew")
    _require_possible(path, said, fit.steps)
    parameters = fit.adapted.parameters()
    found = {
        f"{word}.{i}": stored.get(f"{word}.{i}") for word in ("now", "best", *_MOMENTS) for i in range(len(parameters))
    }
    for name, x in found.items():
        wanted = tuple(parameters[int(name.rpartition(".")[2])].shape)
        if x is None or x.shape != wanted or x.dtype != np.float32 or not np.isfinite(x).all():
            raise BadData(f"'{path}' is damaged: '{name}' is not the {list(wanted)} finite numbers that it should be")
        if name.startswith("square.") and (x < 0).any():
            raise BadData(f"'{path}' is damaged: '{name}' holds squares below 0")
        if name.startswith(_MOMENTS) and not said.updates and x.any():
            raise _impossible(path, fit.steps)
    taken = {name: np.array(x) for name, x in found.items() if x is not None}
    with torch.no_grad():
        for i, parameter in enumerate(parameters):
            parameter.copy_(torch.from_numpy(taken[f"now.{i}"]))
            kept = fit.moments[i]
            for word, moment in zip(_MOMENTS, kept, strict=False):
                moment.copy_(torch.from_numpy(taken[f"{word}.{i}"]))
            kept.count.fill_(said.updates)
    names = list(fit.adapted.adapters)
    best = {name: Factors(taken[f"best.{2 * i}"], taken[f"best.{2 * i + 1}"]) for i, name in enumerate(names)}
    fit.state = State(said.step, dict(said.losses), Adapter(best), said.skipped)


def _require_possible(path: Path, said: schemas.TrainingFile, steps: int) -> None:
    """
    Raises:
        BadData: no training of so many steps comes to such numbers: losses of float32, or what stands for one that is
            no number, looked at one after the other.
    """
    looks = [step for step, _ in said.losses]
    are_losses = all(abs(loss) <= MOST_LOSS or loss == LARGEST for _, loss in said.losses)
    is_in_order = looks == sorted({*looks}) and (not looks or looks[-1] <= said.step)
    is_counted = said.skipped <= said.step - said.updates <= said.step <= steps
    if not is_counted or not are_losses or not is_in_order:
        raise _impossible(path, steps)


def _impossible(path: Path, steps: int) -> BadData:
    return BadData(f"'{path}' is damaged: no training of {steps} steps comes to what it says of itself")

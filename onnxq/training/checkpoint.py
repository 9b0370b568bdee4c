"""What training has reached, in a file, from which an interrupted run goes on bit by bit as it would have gone."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from pathlib import Path
from typing import Any

import torch

from onnxq.errors import BadRecipe
from onnxq.files import staging

_KIND = "onnxq training"


class Checkpoint:
    """The file of one run.

    Args:
        about: what the run is of, in texts; a file of another run is refused.
    """

    def __init__(self, path: Path, *about: str) -> None:
        self.path = path
        self._key = hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def save(self, state: dict[str, Any]) -> None:
        """
        Raises:
            BadOutput: it cannot be written.
        """
        buffer = io.BytesIO()
        torch.save({"kind": _KIND, "key": self._key, "state": state}, buffer)
        staging.write(self.path, buffer.getvalue(), replace=True)

    def load(self) -> dict[str, Any] | None:
        """What was saved; None where nothing was.

        Raises:
            BadRecipe: the file is of something else, or of another run.
        """
        if not self.path.exists():
            return None
        found = _read(self.path)
        if found is None:
            raise BadRecipe(f"'{self.path}' is not a checkpoint of 'onnxq train': name another by --checkpoint")
        if found["key"] != self._key:
            raise BadRecipe(
                f"the checkpoint '{self.path}' is of another model, other data or other settings; delete it, or name "
                "another by --checkpoint"
            )
        state: dict[str, Any] = found["state"]
        return state

    def remove(self) -> None:
        """It is not needed any more."""
        self.path.unlink(missing_ok=True)


def is_checkpoint(path: Path) -> bool:
    """Whether a file that is there is one."""
    return _read(path) is not None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError):
        return None
    is_ours = isinstance(found, dict) and found.get("kind") == _KIND and {"key", "state"} <= found.keys()
    return found if is_ours else None

"""What training has reached, in a file, from which an interrupted run goes on bit by bit as it would have gone."""

from __future__ import annotations

import hashlib
import io
import json
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch

from onnxq.errors import BadRecipe, OnnxqError
from onnxq.files import limits, staging

_KIND = "onnxq training"
#: What pickles of tensors and dicts call, as `pickletools` spells it; and operators by which others are called.
_CALLED = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
_CALLED |= {
    f"torch {kind}Storage"
    for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
}
_OTHER_WAYS = {"STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "BYTEARRAY8"}


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

    def damaged(self, why: str) -> BadRecipe:
        """That what is in the file is not what a run keeps."""
        return BadRecipe(f"the checkpoint '{self.path}' is damaged ({why}): delete it, or name another by --checkpoint")

    def remove(self) -> None:
        """It is not needed any more."""
        self.path.unlink(missing_ok=True)


def is_checkpoint(path: Path) -> bool:
    """Whether a file that is there is one."""
    return _read(path) is not None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        _require_plain(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception:  # of zipfile, and of torch's reader of pickles, which builds tensors and dicts alone
        return None
    is_ours = isinstance(found, dict) and found.get("kind") == _KIND and {"key", "state"} <= found.keys()
    return found if is_ours else None


def _require_plain(path: Path) -> None:
    """Refuse an archive whose members are packed, or together longer than it: torch makes room for what they say.

    Raises:
        ValueError, OSError, OnnxqError: it is no archive, or such a one.
    """
    with limits.open_file(path, OnnxqError) as opened, zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its members are packed, which torch never does")
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("its members share bytes")
        for member in members:
            if member.filename.endswith(".pkl"):
                _require_plain_pickle(archive.read(member))


def _require_plain_pickle(raw: bytes) -> None:
    """Refuse a pickle that calls anything but what makes tensors and dicts: torch's own reader makes bytes of any
    length that a file asks for.

    Raises:
        ValueError: it does.
    """
    if not {str(said) for operator, said, _ in pickletools.genops(raw) if operator.name == "GLOBAL"} <= _CALLED:
        raise ValueError("it calls other things than those that tensors are made of")
    if _OTHER_WAYS & {operator.name for operator, _, _ in pickletools.genops(raw)}:
        raise ValueError("it is not written as torch writes it")

"""What became of a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.checking.result import Result
from onnxq.files import mirror


@dataclass(frozen=True)
class PartResult:
    """One model of the folder.

    Attributes:
        file: where it lies in the result's folder.
        result: what `quantize` did; None for a part that was copied as it is.
        note: why it was copied, or what else differs from what was asked for.
        bytes_before, bytes_after: of the model and its data, each counted for itself.
    """

    name: str
    file: Path
    result: Result | None
    note: str
    bytes_before: int
    bytes_after: int

    def to_dict(self) -> dict[str, Any]:
        table = None if self.result is None else json.loads(self.result.to_json())
        if table is not None:
            table.pop("output")  # the staging folder's
        sizes = {"bytes_before": self.bytes_before, "bytes_after": self.bytes_after}
        return {"part": self.name, "file": self.file.as_posix(), "note": self.note, **sizes, "result": table}


@dataclass(frozen=True)
class FolderResult:
    """What `quantize_folder` did.

    Attributes:
        scheme: the one that was asked for, `auto` as what it stands for.
        copied: files that were copied as they are, relative to the folder.
        left_out: files that were not, each with the reason.
        shared: how many weights are in several parts.
        bytes_before, bytes_after: of all models and their data; a file that parts share counts once.
        notes: sentences about the whole.
    """

    output: Path
    kind: str
    scheme: str
    target: str
    parts: tuple[PartResult, ...]
    copied: tuple[Path, ...]
    left_out: dict[Path, str]
    shared: int
    bytes_before: int
    bytes_after: int
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Everything, for machines."""
        table = {
            "output": mirror.told(self.output),
            "kind": self.kind,
            "scheme": self.scheme,
            "target": self.target,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "shared_weights": self.shared,
            "parts": [part.to_dict() for part in self.parts],
            "copied": [file.as_posix() for file in self.copied],
            "left_out": {file.as_posix(): why for file, why in self.left_out.items()},
            "notes": list(self.notes),
        }
        return json.dumps(table, indent=1)

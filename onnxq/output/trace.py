"""`--trace`: the graph after every step, as text."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx_ir as ir

from onnxq.files.guard import Guard
from onnxq.output.write import make_folder


class Trace:
    """Writes the graph after every step as ONNX text, without weights, if the user asked for it.

    Args:
        folder: where; None: nothing is written.

    Raises:
        BadOutput: a file has that name, or one of an earlier run may not be replaced.
    """

    def __init__(self, folder: str | Path | None, guard: Guard) -> None:
        self.folder, self._guard = None if folder is None else Path(folder), guard
        self._numbers = itertools.count(1)
        if self.folder is None:
            return
        guard.makes(self.folder, "--trace")
        if self.folder.is_dir():
            for path in self.folder.glob("[0-9]*-*.onnxtxt"):
                guard.writes_unnamed(path, "--trace")  # of an earlier run: rather now than in the middle of it

    def write(self, step: str, model: ir.Model) -> None:
        if self.folder is not None:
            make_folder(self.folder)
            text = ir.to_onnx_text(model, exclude_initializers=True)
            path = self.folder / f"{next(self._numbers)}-{step}.onnxtxt"
            self._guard.writes_unnamed(path, "--trace")
            self._guard.write_text(path, text)

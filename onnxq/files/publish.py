"""Moves a model and its data into place, so that a model is never there with data that are not its own."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable
from pathlib import Path

from onnxq.files import data_files, faults, staging


def publish(staged: Path, output: Path, *, replace: bool = True, read: Iterable[Path] = ()) -> None:
    """Move a staged model and its data into place; the data of the model that it replaces go.

    Args:
        staged: a model in a folder of `staging.staging(output)`.
        replace: whether a model that is there by now is replaced.
        read: files that stay as they are, whoever refers to them.

    Raises:
        BadOutput: it cannot be written, or is there and `replace` is off.
    """
    kept = [path for path in read if path.exists()]
    with staging.as_sentences(output):
        new = data_files.own_data(staged)
        for file in (*new, staged):
            faults.point("publish.sync")
            staging.sync(file)
        with staging.alone_in(output.parent) as alone:
            old = [file for file in data_files.own_data(output) if not any(file.samefile(path) for path in kept)]
            if new or old:
                faults.point("publish.journal")
                ours = [file for file in new if not output.with_name(file.name).exists()]
                data_files.write_journal(staged.parent, output, [*ours, *old])
            for file in new:
                faults.point("publish.data")
                _move_data(file, output.with_name(file.name))
            faults.point("publish.data_moved")
            staging.sync_folder(output.parent)
            faults.point("publish.model")
            staging.move(staged, output, replace=replace)
            faults.point("publish.model_moved")
            staging.sync_folder(output.parent)
            if alone:
                data_files.settle(staged.parent, is_own=True)


def _move_data(staged: Path, target: Path) -> None:
    """A file of the same name holds the same bytes, unless it was damaged."""
    if not target.is_file() or not filecmp.cmp(staged, target, shallow=False):
        staging.move(staged, target)

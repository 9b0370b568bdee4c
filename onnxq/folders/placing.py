"""Where the models of a folder's result, and the files that go with them, come to lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from onnxq.errors import BadModel
from onnxq.folders import data_files, layouts
from onnxq.folders.contents import Folder, Part
from onnxq.output import place


def place_models(
    folder: Folder,
    staged: Path,
    files: Mapping[str, Path],
    made: Mapping[str, Path],
    source: Callable[[Part], Path],
    layout: str = layouts.KEEP_NAMES,
) -> None:
    """Put the models where they belong. Parts that shared a file of data share one again; in any case a file of data
    keeps its name, unless a model that is copied reads it too.

    Args:
        staged: the folder that becomes the result.
        files: where each part goes, relative to that.
        made: where the new models lie, by part; they are moved. Others are copied as they are.
        source: where a part is read.

    Raises:
        BadModel: a model is the data of another one.
    """
    for part in folder.parts:
        if both := {*part.data} & {*files.values()}:
            raise BadModel(f"'{both.pop()}' is a model, and the data of '{part.file}' at once")
    groups: dict[Path | None, list[Part]] = {}
    for part in folder.parts:
        has_data = bool(data_files.locations(made[part.name]) if part.name in made else part.data)
        data = layouts.data_of(part, files[part.name], layout, has_data)
        groups.setdefault(None if data in folder.read_too else data, []).append(part)
    for data, parts in groups.items():
        if data is not None and (any(part.name in made for part in parts) or layout != layouts.KEEP_NAMES):
            sources = [made[part.name] if part.name in made else source(part) for part in parts]
            targets = [staged / files[part.name] for part in parts]
            data_files.write_together(list(zip(sources, targets, strict=True)), staged / data)
            continue
        for part in parts:
            target = staged / files[part.name]
            if part.name in made:
                data_files.transfer(made[part.name], target, os.replace)
            else:
                data_files.transfer(source(part), target, data_files.copy)


def copy_others(folder: Folder, staged: Path) -> None:
    """Everything that goes with the models; what the result has a file of its own for is left out."""
    for file in folder.others:
        if file in folder.read_too and (staged / file).exists():
            continue  # with a part that was copied
        if (staged / file).exists() or file == Path(place.REPORT):
            folder.left_out[file] = "the result has a file of its own by this name"
        else:
            data_files.copy(folder.path / file, staged / file)

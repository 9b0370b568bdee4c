"""A model in which nothing can be quantized, put where the quantized one was expected."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx_ir as ir

from onnxq.files.guard import Guard
from onnxq.model.load import external_tensors, load_model
from onnxq.output import write


def copy_model(model: Path, output: Path, guard: Guard) -> tuple[int, int]:
    """Copy `model`, with the data beside it, to `output`; bytes that were read and written.

    Raises:
        BadModel: it cannot be read.
        BadOutput: as `Guard.writes`.
    """
    loaded = load_model(model)
    sources = {model, *(Path(tensor.path) for tensor in external_tensors(loaded))}
    guard.reads(*sources)
    guard.writes(output)
    with write.staging(output) as folder:
        staged = folder / output.name
        nbytes = copy_files(model, loaded, staged)
        guard.publish(staged, output)
    return sum(file.stat().st_size for file in sources), nbytes


def copy_files(model: Path, loaded: ir.Model, staged: Path) -> int:
    """Copy `model`, which was read as `loaded`, to a folder of our own: the same bytes where it is a single file.

    Returns:
        Bytes written.
    """
    if external_tensors(loaded):  # it names its data by their old places
        return write.save(loaded, staged)
    return Path(shutil.copyfile(model, staged)).stat().st_size

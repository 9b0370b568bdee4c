"""A model in which nothing can be quantized, put where the quantized one was expected."""

from __future__ import annotations

import shutil
from pathlib import Path

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
        if len(sources) > 1:  # it names its data by their old places
            nbytes = write.save(loaded, staged)
        else:
            nbytes = Path(shutil.copyfile(model, staged)).stat().st_size
        guard.publish(staged, output)
    return sum(file.stat().st_size for file in sources), nbytes

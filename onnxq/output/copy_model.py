"""A model in which nothing can be quantized, put where the quantized one was expected."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx_ir as ir

from onnxq.files.guard import Guard
from onnxq.model.load import external_tensors, load_model
from onnxq.output import write
from onnxq.output.data_writer import ShardSize
from onnxq.runtime.own_files.model_files import is_text


def copy_model(model: Path, output: Path, guard: Guard, shard_size: ShardSize = None) -> tuple[int, int]:
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
        nbytes = copy_files(model, loaded, staged, shard_size)
        guard.publish(staged, output)
    return sum(file.stat().st_size for file in sources), nbytes


def copy_files(model: Path, loaded: ir.Model, staged: Path, shard_size: ShardSize = None) -> int:
    """Copy `model`, which was read as `loaded`, to a folder of our own: the same bytes where it is a single file of
    protobuf.

    Args:
        shard_size: as of `write.save`.

    Returns:
        Bytes written.
    """
    # It names its data by their old places; or is text, which nothing takes for a model by the name of its copy.
    if external_tensors(loaded) or shard_size is not None or is_text(model):
        return write.save(loaded, staged, shard_size=shard_size)
    return Path(shutil.copyfile(model, staged)).stat().st_size

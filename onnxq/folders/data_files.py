"""Files of external data: parts that shared one share one again, and a file keeps the name it had."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from onnxq.encoding import lazy
from onnxq.files.ranged import admit
from onnxq.model.load import external_tensors, load_written, to_proto
from onnxq.output import write


def locations(model: Path) -> set[Path]:
    """The files of external data of a model, relative to its folder."""
    return {Path(tensor.location) for tensor in external_tensors(load_written(model))}


def transfer(model: Path, target: Path, how: Callable[[Path, Path], object]) -> None:
    """Copy or move a model and its external data, whose names stay."""
    pairs = [(model.parent / name, target.parent / name) for name in locations(model)]
    for source, destination in [*pairs, (model, target)]:
        destination.parent.mkdir(parents=True, exist_ok=True)
        how(source, destination)


def copy(source: Path, target: Path) -> None:
    """The bytes of a file; links are followed, and the copy can be written to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def write_together(models: Sequence[tuple[Path, Path]], data: Path) -> None:
    """Write models anew with their large tensors in one file, where equal bytes are stored once.

    Args:
        models: for each, where it is read and where it goes: into the folder of `data`, or one above it.
        data: the file, which none of them reads.
    """
    written: dict[bytes, tuple[int, int]] = {}
    data.parent.mkdir(parents=True, exist_ok=True)
    with open(data, "wb") as opened:
        for source, target in models:
            onnx.save(_moved(source, target, data, opened, written), target)


def _moved(
    source: Path, target: Path, data: Path, opened: BinaryIO, written: dict[bytes, tuple[int, int]]
) -> onnx.ModelProto:
    """The model with its large tensors appended to `data`."""
    model = load_written(source)
    for external in external_tensors(model):
        admit(external)
    location = data.relative_to(target.parent).as_posix()
    for value in write.tensors_to_write(model):
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < write.EXTERNAL_BYTES:
            continue
        offset, length = _append(tensor, opened, written)
        lazy.release(tensor)
        value.const_value = ir.ExternalTensor(
            location, offset, length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
        )
    return to_proto(model)


def _append(tensor: ir.TensorProtocol, opened: BinaryIO, written: dict[bytes, tuple[int, int]]) -> tuple[int, int]:
    raw = tensor.tobytes()
    key = hashlib.blake2b(raw, digest_size=20).digest()
    if key not in written:
        opened.write(b"\0" * (-opened.tell() % write.ALIGNMENT))
        start = opened.tell()
        opened.write(raw)
        written[key] = (start, len(raw))
    return written[key]

"""Files of external data: parts that shared one share one again, and a file keeps the name it had."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from onnxq import encoding, save


def write_together(models: Sequence[tuple[Path, Path]], data: Path) -> None:
    """Write models with their large tensors in one file, where equal bytes are stored once.

    Args:
        models: for each, where it is read and where it goes, which may be the same; all go into `data`'s folder or
            one above it.
        data: the file; it may be one that the models read.
    """
    beside = data.with_name(f".{data.name}.new")
    written: dict[bytes, tuple[int, int]] = {}
    data.parent.mkdir(parents=True, exist_ok=True)
    with open(beside, "wb") as opened:
        protos = [_moved(source, target, data, opened, written) for source, target in models]
    for (source, target), proto in zip(models, protos, strict=True):
        if source == target:
            save.data_path(source).unlink(missing_ok=True)
        onnx.save(proto, target)
    os.replace(beside, data)


def _moved(
    source: Path, target: Path, data: Path, opened: BinaryIO, written: dict[bytes, tuple[int, int]]
) -> onnx.ModelProto:
    """The model with its large tensors appended to the opened file, which will be `data`."""
    model = ir.load(source)
    location = data.relative_to(target.parent).as_posix()
    for value in save.tensors_to_write(model):
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < save.EXTERNAL_BYTES:
            continue
        offset, length = _append(tensor, opened, written)
        encoding.release(tensor)
        value.const_value = ir.ExternalTensor(
            location, offset, length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
        )
    return ir.to_proto(model)


def _append(tensor: ir.TensorProtocol, opened: BinaryIO, written: dict[bytes, tuple[int, int]]) -> tuple[int, int]:
    raw = tensor.tobytes()
    key = hashlib.blake2b(raw, digest_size=20).digest()
    if key not in written:
        opened.write(b"\0" * (-opened.tell() % save.ALIGNMENT))
        start = opened.tell()
        opened.write(raw)
        written[key] = (start, len(raw))
    return written[key]

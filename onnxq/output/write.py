"""Step 7: write a model, packing one weight at a time, into a folder from which it is moved into place in the end."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from onnxq import own_ops
from onnxq.encoding import lazy, memo
from onnxq.errors import BadOutput
from onnxq.files import faults, ranged
from onnxq.files.data_files import data_name, own_data
from onnxq.files.guard import Guard
from onnxq.files.publish import publish
from onnxq.files.staging import as_sentences, staging, write
from onnxq.output.share_codes import Sharing

__all__ = [
    "check_destination",
    "make_folder",
    "nbytes_to_write",
    "own_data",
    "publish",
    "save",
    "staging",
    "tensors_to_write",
    "write_text",
]

#: Above this many bytes of tensors they go to a file of their own, which runtimes map instead of reading.
SINGLE_FILE_BYTES = 256 << 20
#: Tensors of at least this many bytes go to the data file, at multiples of `ALIGNMENT`; small ones stay in the model.
EXTERNAL_BYTES = 1 << 10
ALIGNMENT = 64
#: What the data file is called while its bytes are not known yet.
UNNAMED = "data"

Progress = Callable[[int], None]


def require_onnx(output: Path) -> None:
    """Refuse at once a name that onnx would take for JSON or text.

    Raises:
        BadOutput: it does not end in .onnx.
    """
    if output.suffix != ".onnx" and not output.is_dir():
        raise BadOutput(f"the output '{output}' must end in .onnx; choose another name with -o")


def check_destination(output: Path, sources: Iterable[Path], force: bool) -> None:
    """Refuse early what could not be written later, where no `Guard` watches over all files of a command.

    Args:
        sources: files that are read and must stay as they are.

    Raises:
        BadOutput: the output is there already (without `force`), is a source or no file, or its folder cannot be
            written to.
    """
    guard = Guard(force)
    guard.reads(*sources)
    guard.writes(output)


def write_text(path: Path, text: str) -> None:
    """Write a small file, or replace one: never is there half of it.

    Raises:
        BadOutput: it cannot be written.
    """
    write(path, text.encode())


def make_folder(path: Path) -> None:
    """Make a folder, and those around it, unless it is there.

    Raises:
        BadOutput: it cannot be made.
    """
    with as_sentences(path):
        path.mkdir(parents=True, exist_ok=True)


def tensors_to_write(model: ir.Model) -> list[ir.Value]:
    """Every initializer, in the order in which they are written."""
    return [value for each in model.graphs() for value in each.initializers.values() if value.const_value is not None]


def nbytes_to_write(model: ir.Model) -> int:
    """Bytes of all initializers, as they will be written."""
    return sum(_nbytes(value) for value in tensors_to_write(model))


def save(model: ir.Model, path: Path, progress: Progress = lambda nbytes: None) -> int:
    """Write `model` to `path`, and its weights beside it (`own_data(path)`) if it is large. Lazy tensors are used up.

    Args:
        path: in a folder in which nobody reads yet: files there are written in place.
        progress: called with the bytes of each tensor after it is written.

    Returns:
        Bytes written.
    """
    for data in own_data(path):  # of an earlier attempt
        data.unlink()
    if nbytes_to_write(model) <= SINGLE_FILE_BYTES:
        _write_tensors(model, None, progress)
        return _save_graph(model, path)
    unnamed = path.with_name(UNNAMED)
    with unnamed.open("wb") as file:
        written = _write_tensors(model, file, progress)
    data = path.with_name(data_name(path, written.digest.hexdigest()))
    unnamed.replace(data)
    for value in written.values:
        tensor = value.const_value
        assert isinstance(tensor, ir.ExternalTensor)
        value.const_value = _at(data.name, tensor.offset or 0, tensor.length or 0, tensor)
    return _save_graph(model, path) + data.stat().st_size


@dataclass
class _Written:
    """What is in the data file by now.

    Attributes:
        places: offset and length of tensors, by the hash of their bytes.
        values: whose tensors are there.
        digest: of all bytes.
    """

    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    values: list[ir.Value] = field(default_factory=list)
    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=8))


def _write_tensors(model: ir.Model, data: BinaryIO | None, progress: Progress) -> _Written:
    """Large tensors go to `data`, if there is one; the others are just bytes in the model afterwards."""
    written = _Written()
    tied: dict[Hashable, ir.Value] = {}
    sharing = Sharing(tensors_to_write(model))
    for value in tensors_to_write(model):
        tensor = value.const_value
        assert tensor is not None
        nbytes, content = _nbytes(value), _Content(tensor)
        if not _is_tied(value, content, tied) and not sharing.takes_over(value, tensor, content.hash):
            if data is None or nbytes < EXTERNAL_BYTES:
                value.const_value = _in_memory(content)
            else:
                faults.point("save.data")
                value.const_value = _at(UNNAMED, *_append(data, content, written), tensor)
                written.values.append(value)
            lazy.release(tensor)
        progress(nbytes)
    memo.forget()
    return written


def _save_graph(model: ir.Model, path: Path) -> int:
    faults.point("save.model")
    onnx.save(ir.to_proto(model), path)
    return path.stat().st_size


def _at(file: str, offset: int, length: int, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    """`tensor` as bytes of a file."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(file, offset, length, tensor.dtype, shape=shape, name=tensor.name or "")


class _Content:
    """What a tensor holds, packed once and hashed once however often it is asked for."""

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        self.tensor = tensor

    @functools.cached_property
    def raw(self) -> bytes:
        return self.tensor.tobytes()

    def hash(self) -> bytes:
        return self._digest

    @functools.cached_property
    def _digest(self) -> bytes:
        if isinstance(self.tensor, ir.ExternalTensor):
            return _hash_of_file(self.tensor)
        return hashlib.blake2b(self.raw, digest_size=20).digest()


def _is_tied(value: ir.Value, content: _Content, tied: dict[Hashable, ir.Value]) -> bool:
    """Whether operators of the onnxq domain read the same bytes under another name; then that name takes over.

    They read a table in the same tiles whether they look rows up or multiply by them, and whichever way it lay in the
    float model. Kernels of other domains may count on a constant having one reader.
    """
    if value.graph is None or any(use.node.domain != own_ops.DOMAIN for use in value.uses()) or value.is_graph_output():
        return False
    tensor = content.tensor
    first = tied.setdefault((id(value.graph), tensor.dtype, tuple(tensor.shape.numpy()), content.hash()), value)
    if first is value:
        return False
    value.replace_all_uses_with(first)
    value.graph.initializers.pop(value.name or "")
    return True


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _append(data: BinaryIO, content: _Content, written: _Written) -> tuple[int, int]:
    """Offset and length of the tensor's bytes in `data`. Tied weights come out as equal bytes: they are stored once."""
    key = content.hash()
    if key not in written.places:
        data.write(b"\0" * (-data.tell() % ALIGNMENT))
        start = data.tell()
        if isinstance(content.tensor, ir.ExternalTensor):  # by the operating system, not through our memory
            content.tensor.tofile(data)
        else:
            data.write(content.raw)
        written.places[key] = (start, data.tell() - start)
        written.digest.update(key)
    return written.places[key]


def _hash_of_file(tensor: ir.ExternalTensor) -> bytes:
    """Of an external tensor's bytes, which are not all in memory at once."""
    ranged.ensure(tensor)
    digest, left = hashlib.blake2b(digest_size=20), tensor.length or tensor.nbytes
    with open(tensor.path, "rb") as file:
        file.seek(tensor.offset or 0)
        while left and (chunk := file.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.digest()


def _in_memory(content: _Content) -> ir.TensorProtocol:
    """A tensor that is just its bytes."""
    tensor = content.tensor
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    proto = onnx.TensorProto(
        name=tensor.name or "", data_type=int(tensor.dtype), dims=tensor.shape.numpy(), raw_data=content.raw
    )
    return ir.TensorProtoTensor(proto)

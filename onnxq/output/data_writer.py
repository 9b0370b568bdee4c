"""The data files of a model that is being written: a single one, several of a bounded size, or one for each layer.

A file is called by a hash of its bytes in the end (`files/data_files.py`); until then by a number. Equal bytes are
stored once, in whichever file they came first.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import onnx_ir as ir

from onnxq.errors import BadRecipe
from onnxq.files import faults, ranged
from onnxq.files.data_files import data_name

ALIGNMENT = 64
#: In the place of a size: a file for each node that reads weights.
LAYER = "layer"
#: How many bytes a data file may have, or `LAYER`; None: all are in one file.
ShardSize = int | str | None
#: Operators between a constant and the node that it is a weight of.
_BETWEEN = ("DequantizeLinear", "Cast", "CastLike", "Reshape", "Transpose", "Mul", "Sub", "Gather", "Identity")


def require_shard_size(size: ShardSize) -> None:
    """
    Raises:
        BadRecipe: it is neither a number of bytes nor `layer`.
    """
    if size is not None and size != LAYER and (not isinstance(size, int) or size < 1):
        raise BadRecipe(f"a data file cannot have {size!r} bytes: give a size such as 2GB, or '{LAYER}'")


class Content:
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


@dataclass
class _File:
    """One that is being written, or was; `digest` is of the hashes of all tensors in it."""

    path: Path
    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    nbytes: int = 0
    layer: str = ""


class DataWriter:
    """Takes tensors one after the other; when it is left, the files are closed. `finish` gives them their names.

    Args:
        folder: where nobody reads yet.
        size: of a file, which only a single tensor may exceed.
    """

    def __init__(self, folder: Path, size: ShardSize = None) -> None:
        self._folder, self._size = folder, size
        self._files: list[_File] = []
        self._open: BinaryIO | None = None
        #: File, offset and length of tensors, by the hash of their bytes.
        self._places: dict[bytes, tuple[int, int, int]] = {}
        self._values: list[tuple[ir.Value, bytes]] = []

    def __enter__(self) -> DataWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def take(self, value: ir.Value, content: Content) -> None:
        """Write what `value` holds, unless the same bytes are there already; it holds a place in a file afterwards."""
        key, tensor = content.hash(), content.tensor
        faults.point("save.data")
        if key not in self._places:
            self._places[key] = self._append(content, key, layer_of(value) if self._size == LAYER else "")
        self._values.append((value, key))
        value.const_value = _at("", self._places[key], tensor)

    def finish(self, model: Path) -> int:
        """Call the files by what is in them, as data of `model`; the bytes that they have together."""
        self._close()
        names = []
        for file in self._files:
            data = model.with_name(data_name(model, file.digest.hexdigest()))
            file.path.replace(data)
            names.append(data.name)
        for value, key in self._values:
            tensor, place = value.const_value, self._places[key]
            assert tensor is not None
            value.const_value = _at(names[place[0]], place, tensor)
        return sum(file.nbytes for file in self._files)

    def _append(self, content: Content, key: bytes, layer: str) -> tuple[int, int, int]:
        nbytes = content.tensor.nbytes
        if not self._files or self._is_full(self._files[-1], nbytes, layer):
            self._close()
            self._files.append(_File(self._folder / f"data.{len(self._files)}", layer=layer))
            self._open = self._files[-1].path.open("wb")
        assert self._open is not None
        file = self._files[-1]
        self._open.write(b"\0" * (-self._open.tell() % ALIGNMENT))
        start = self._open.tell()
        if isinstance(content.tensor, ir.ExternalTensor):  # by the operating system, not through our memory
            content.tensor.tofile(self._open)
        else:
            self._open.write(content.raw)
        file.nbytes = self._open.tell()
        file.digest.update(key)
        return len(self._files) - 1, start, file.nbytes - start

    def _is_full(self, file: _File, nbytes: int, layer: str) -> bool:
        if isinstance(self._size, int):
            return file.nbytes > 0 and file.nbytes + -file.nbytes % ALIGNMENT + nbytes > self._size
        return file.layer != layer

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def by_layer(values: list[ir.Value]) -> list[ir.Value]:
    """The same, those of a layer one after the other."""
    layers: dict[str, list[ir.Value]] = {}
    for value in values:
        layers.setdefault(layer_of(value), []).append(value)
    return [value for each in layers.values() for value in each]


def layer_of(value: ir.Value) -> str:
    """The first node that reads a constant as its weight: what unpacks it lies between."""
    seen = value
    for _ in range(16):
        use = next(iter(seen.uses()), None)
        if use is None:
            break
        if use.node.op_type not in _BETWEEN or not use.node.outputs:
            return use.node.name or use.node.outputs[0].name or use.node.op_type
        seen = use.node.outputs[0]
    return seen.name or ""


def _at(file: str, place: tuple[int, int, int], tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    """`tensor` as bytes of a file."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(file, place[1], place[2], tensor.dtype, shape=shape, name=tensor.name or "")


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

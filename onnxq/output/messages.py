"""What is lazy of a weight, as a message to another process; and a name of its content.

A message says where numbers lie, and not what they are: whoever gets it reads them there. Its name is made of the
numbers themselves where they lie in no file of the model, so that it is the same for the next command.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import io
import math
import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.cluster import Engine
from onnxq.encoding.lazy import GivenTensor
from onnxq.files import mirror, storage
from onnxq.files.ranged import AdmittedTensor
from onnxq.formats import Format
from onnxq.layouts import Layout
from onnxq.summaries.evidence import Layer, load_array, rows_seen
from onnxq.summaries.gram import Gram

#: How whoever gets a message has the evidence of a layer: a function and its arguments.
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
#: Key of a constant's `meta`: a hash of its numbers.
_DIGEST = "onnxq.digest"
_beside: contextvars.ContextVar[Sequence[bytes]] = contextvars.ContextVar("beside", default=())


def message_of(what: object, evidence: Callable[[Layer], Reduced]) -> bytes:
    """`what` for another process.

    Args:
        evidence: how it gets that of a layer.

    Raises:
        Exception: whatever a library's or a caller's own object raises that cannot be sent.
    """

    def reduced(found: Any) -> Reduced | None:
        if isinstance(found, ir.ExternalTensor):
            return external, place_of(found)
        if isinstance(found, ir.TensorProtoTensor):
            return _inline, (found.raw.SerializeToString(),)
        if isinstance(found, Layer):
            return evidence(found)
        return _of_code(found)

    return _pickled(what, reduced)


def opened(message: bytes, beside: Sequence[bytes] = ()) -> Any:
    """What a message is of; of whoever sent the task that it belongs to, and so code that may run here anyway.

    Args:
        beside: evidence that was sent beside it.
    """
    token = _beside.set(beside)
    try:
        return pickle.loads(message)
    finally:
        _beside.reset(token)


class Named(NamedTuple):
    """
    Attributes:
        digest: of whatever decides the content, but of the files at `places` only where in them it lies.
        layers: those whose evidence it reads.
    """

    digest: str
    places: tuple[str, ...]
    layers: tuple[Layer, ...]


def named(what: object) -> Named:
    """What a message of `what` is called.

    Raises:
        Exception: as of `message_of`.
    """
    places: dict[str, None] = {}
    layers: list[Layer] = []

    def reduced(found: Any) -> Reduced | None:
        if isinstance(found, ir.ExternalTensor):
            places[str(Path(found.path).absolute())] = None
            return _content, place_of(found)
        if isinstance(found, (ir.TensorProtoTensor, ir.Tensor)):
            return _content, (int(found.dtype), tuple(found.shape.numpy()), digest_of(found))
        if isinstance(found, Layer):
            layers.append(found)
            return _content, (found.channel, found.groups, found.follows, evidence_digest(found))
        return _of_code(found)

    digest = hashlib.blake2b(_pickled(what, reduced), digest_size=20).hexdigest()
    return Named(digest, tuple(places), tuple(layers))


def _content(*parts: object) -> None:
    """Stands for what these say, in what is only hashed."""


def _of_code(found: Any) -> Reduced | None:
    """What holds no numbers of its own."""
    if isinstance(found, GivenTensor):
        raise TypeError("made by the caller")
    if isinstance(found, ir.LazyTensor):
        return _lazy, (found._func, int(found.dtype), tuple(found.shape.numpy()), found.name)
    if isinstance(found, Format) and formats.get(found.name) is found:
        return formats.get, (found.name,)
    if isinstance(found, Layout):
        name = getattr(found, "__name__", "")
        return (_layout, (name,)) if getattr(layouts, name, None) is found else None
    return None


def _layout(name: str) -> Layout:
    found = getattr(layouts, name)
    assert isinstance(found, Layout)
    return found


def _pickled(what: object, reduced: Callable[[Any], Reduced | None]) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, found: Any) -> Any:
            made = reduced(found)
            return super().reducer_override(found) if made is None else made

    buffer = io.BytesIO()
    Pickler(buffer).dump(what)
    return buffer.getvalue()


def digest_of(tensor: ir.TensorProtocol) -> str:
    """A hash of the numbers of a tensor that is in memory."""
    if _DIGEST not in tensor.meta:
        tensor.meta[_DIGEST] = hashlib.blake2b(tensor.tobytes(), digest_size=20).hexdigest()
    return str(tensor.meta[_DIGEST])


def place_of(tensor: ir.ExternalTensor) -> tuple[Any, ...]:
    """Where the numbers of a tensor lie, as `external` takes it."""
    path = Path(tensor.path).absolute()
    shape = tuple(tensor.shape.numpy())
    return mirror.url_of(path) or str(path), tensor.offset, tensor.length, int(tensor.dtype), shape, tensor.name or ""


def external(
    path: str, offset: int | None, length: int | None, dtype: int, shape: tuple[int, ...], name: str
) -> ir.TensorProtocol:
    """The tensor at this place: in a file that this process sees, or in one of a store."""
    if storage.is_url(path):
        return _far(path, offset or 0, ir.DataType(dtype), shape, name)
    where = Path(path)
    return AdmittedTensor(
        where.name, offset, length, ir.DataType(dtype), shape=ir.Shape(shape), name=name, base_dir=where.parent
    )


def _far(url: str, start: int, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> ir.LazyTensor:
    """A part of a file of a store, which is read when somebody asks for it, and kept nowhere else."""

    def evaluate() -> ir.TensorProtocol:
        nbytes = math.ceil(math.prod(shape) * dtype.itemsize)
        return in_memory(storage.read(url, start, start + nbytes), int(dtype), shape, name)

    return ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(shape), name=name)


def in_memory(raw: bytes, dtype: int, shape: Sequence[int], name: str) -> ir.TensorProtoTensor:
    """A tensor of these bytes, as they lie in a file."""
    return ir.TensorProtoTensor(onnx.TensorProto(name=name, data_type=dtype, dims=shape, raw_data=raw))


def _inline(proto: bytes) -> ir.TensorProtoTensor:
    return ir.TensorProtoTensor(onnx.TensorProto.FromString(proto))


def _lazy(make: Callable[[], ir.TensorProtocol], dtype: int, shape: tuple[int, ...], name: str | None) -> ir.LazyTensor:
    return ir.LazyTensor(make, dtype=ir.DataType(dtype), shape=ir.Shape(shape), name=name)


# -- evidence ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SentLayer(Layer):
    """Evidence that came with the task, where the worker does not see the file it lies in.

    Attributes:
        arrays: by their names in the file.
    """

    arrays: Mapping[str, NDArray] = field(default_factory=dict)

    @property
    def seen(self) -> Hashable:
        return self

    def turned(self, channel: int) -> Layer:
        if channel == self.channel:
            return self
        return SentLayer(channel, self.groups, self.file, self.numbers, self.follows, self.chosen, {}, self.arrays)

    @property
    def count(self) -> int:
        return sum(int(self.arrays[f"{number}.count"]) for number in self.numbers)

    def held_back(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        rows = np.concatenate([self.arrays[f"{number}.rows"] for number in self.numbers])
        if not self.follows:
            return rows, rows
        return rows, np.concatenate([self.arrays[f"{number}.float_rows"] for number in self.numbers])

    def _gram(self, number: int) -> Gram:
        sums = self.arrays[f"{number}.gram"]
        cross = self.arrays[f"{number}.cross"] if self.follows else None
        return Gram(sums, int(self.arrays[f"{number}.count"]), cross)


def evidence_for(engine: Engine) -> Callable[[Layer], Reduced]:
    """For messages to an engine's workers: the file where they see it, else what is in it."""

    def evidence(layer: Layer) -> Reduced:
        if not is_unseen(layer, engine):
            return Layer, _plain(layer)
        return _sent_layer, (_plain(layer), _arrays_of(layer))

    return evidence


def evidence_beside(layers: Sequence[Layer]) -> Callable[[Layer], Reduced]:
    """For messages beside which the evidence of these layers is sent, as `evidence_bytes`; others are in sight."""
    numbers = {id(layer): number for number, layer in enumerate(layers)}

    def evidence(layer: Layer) -> Reduced:
        if id(layer) not in numbers:
            return Layer, _plain(layer)
        return _layer_beside, (_plain(layer), numbers[id(layer)])

    return evidence


def is_unseen(layer: Layer, engine: Engine) -> bool:
    """Whether workers do not see the evidence of a layer."""
    return bool(layer.numbers) and bool(engine.unseen(layer.file))


def evidence_bytes(layer: Layer) -> bytes:
    """What is known of a layer."""
    buffer = io.BytesIO()
    np.savez(buffer, **_arrays_of(layer))  # type: ignore[arg-type]
    return buffer.getvalue()


def evidence_digest(layer: Layer) -> str:
    """A hash of what is known of a layer; empty, if nothing is."""
    if not layer.numbers:
        return ""
    stat = layer.file.stat()
    return _evidence_digest(layer.file.absolute(), stat.st_ino, stat.st_ctime_ns, layer.numbers, layer.follows)


@functools.lru_cache(4096)
def _evidence_digest(file: Path, inode: int, changed: int, numbers: tuple[int, ...], follows: bool) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for array in _arrays_of(Layer(0, 1, file, numbers, follows)).values():
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _plain(layer: Layer) -> tuple[int, int, Path, tuple[int, ...], bool]:
    return layer.channel, layer.groups, layer.file.absolute(), layer.numbers, layer.follows


def _arrays_of(layer: Layer) -> dict[str, NDArray]:
    names = ["gram", "rows", *(["cross", "float_rows"] if layer.follows else [])]
    arrays = {f"{n}.{name}": load_array(layer.file, f"{n}.{name}") for n in layer.numbers for name in names}
    return arrays | {f"{n}.count": np.array(rows_seen(layer.file, n)) for n in layer.numbers}


def _sent_layer(plain: tuple[int, int, Path, tuple[int, ...], bool], arrays: Mapping[str, NDArray]) -> SentLayer:
    return SentLayer(*plain, Counter(), {}, arrays)


def _layer_beside(plain: tuple[int, int, Path, tuple[int, ...], bool], number: int) -> SentLayer:
    with np.load(io.BytesIO(_beside.get()[number]), allow_pickle=False) as arrays:
        return _sent_layer(plain, dict(arrays))

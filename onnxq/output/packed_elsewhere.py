"""Weights packed by a cluster's workers while the model is written: each reads its part of the file, and sends bytes.

A task is one weight in one format, with all of its forms (codes, scales, zero points). Workers read the numbers where
they lie, so that none holds a model; only a few results are under way at a time, so that nor does this process.
What other processes could not make, it makes itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms, cluster, formats
from onnxq.cluster import Engine, Task
from onnxq.encoding import lazy, memo
from onnxq.encoding.lazy import EncodedTensor, Encoding, GivenTensor
from onnxq.errors import Bug
from onnxq.files import limits, mirror, storage
from onnxq.formats import Format
from onnxq.output.write import tensors_to_write
from onnxq.summaries.evidence import Layer, load_array, rows_seen
from onnxq.summaries.gram import Gram

#: Weights of fewer bytes are packed here: sending them takes longer.
LEAST_BYTES = 1 << 18


def pack_elsewhere(engine: Engine, model: ir.Model, progress: Callable[[], object] = lambda: None) -> int:
    """Let the engine's workers make the encoded tensors of `model`, when they are read in the order in which a model is
    written.

    Args:
        progress: called before the first is sent.

    Returns:
        How many weights that are.
    """
    found: dict[Hashable, _Weight] = {}
    for value in tensors_to_write(model):
        tensor = value.const_value
        if isinstance(tensor, EncodedTensor) and _is_worth_it(tensor.encoding, engine):
            key = lazy.key_of(tensor.encoding)
            found.setdefault(key, _Weight(tensor.encoding)).values.append(value)
    sendable = [weight for weight in found.values() if weight.is_sendable(engine)]
    if not sendable:
        return 0
    progress()
    cluster.require_readable(engine, *{place for weight in sendable for place in weight.places})
    results = _Results(engine, sendable)
    for number, weight in enumerate(sendable):
        for part, value in enumerate(weight.values):
            tensor = value.const_value
            assert isinstance(tensor, EncodedTensor)
            value.const_value = _packed(tensor, results, number, part)
    return len(sendable)


def _is_worth_it(encoding: Encoding, engine: Engine) -> bool:
    if engine.is_here and encoding.algorithm in algorithms.QUICK:
        return False  # this process has the same cores
    is_large = encoding.given is None and encoding.tensor.nbytes >= LEAST_BYTES
    return is_large and not memo.current().has(lazy.key_of(encoding))


def _packed(tensor: EncodedTensor, results: _Results, weight: int, part: int) -> ir.LazyTensor:
    def evaluate() -> ir.TensorProtocol:
        proto = onnx.TensorProto(
            data_type=int(tensor.dtype), dims=tensor.shape.numpy(), raw_data=results.take(weight, part, tensor.nbytes)
        )
        return ir.TensorProtoTensor(proto)

    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


@dataclass
class _Weight:
    """One weight in one format, and the values that hold its parts."""

    encoding: Encoding
    values: list[ir.Value] = field(default_factory=list)
    message: bytes = b""
    places: tuple[str, ...] = ()

    def is_sendable(self, engine: Engine) -> bool:
        """Whether another process can make it; then `message` says how."""
        try:
            parts = [(each.layout, each.dtype) for value in self.values if (each := _encoded(value))]
            self.message, self.places = _dumped((self.encoding, parts), engine)
        except Exception:  # whatever a library's or a caller's own object raises that cannot be sent
            return False
        return True

    def task(self) -> Task:
        files = [[mirror.url_of(path) or path, *mirror.identity_of(path)] for path in self.places]
        content = [hashlib.blake2b(self.message, digest_size=20).hexdigest(), files]
        name = self.encoding.tensor.name or "a weight"
        return Task(packed_parts, (self.message,), cluster.named(packed_parts, content), f"'{name}'")


def _encoded(value: ir.Value) -> EncodedTensor:
    assert isinstance(value.const_value, EncodedTensor)
    return value.const_value


class _Results:
    """Results in their order; those of the weights that were passed over wait for whoever wants them."""

    def __init__(self, engine: Engine, weights: Sequence[_Weight]) -> None:
        self._weights = weights
        self._come = cluster.results(engine, (weight.task() for weight in weights))
        self._next = 0
        self._held: dict[int, list[bytes]] = {}
        self._left = [len(weight.values) for weight in weights]

    def take(self, weight: int, part: int, nbytes: int) -> bytes:
        while self._next <= weight:
            made, chosen = _read(next(self._come))
            if len(made) != len(self._weights[self._next].values):
                raise Bug("a worker sent other parts of a weight than it was asked for; please report it")
            layer = self._weights[self._next].encoding.layer
            if layer is not None:
                layer.chosen.clear()  # of what was tried before
                layer.chosen.update(chosen)
            self._held[self._next] = made
            self._weights[self._next].message = b""
            self._next += 1
        found = self._held[weight][part]
        if len(found) != nbytes:
            raise Bug(f"a worker sent {len(found)} bytes of a weight and not {nbytes}; please report it")
        self._left[weight] -= 1
        if not self._left[weight]:
            del self._held[weight]
        return found


def packed_parts(message: bytes) -> bytes:
    """On a worker: the bytes of each part of a weight."""
    encoding, parts = pickle.loads(message)  # of whoever sent this task, and so code that it may run here anyway
    made = [encoding.part(layout, dtype).tobytes() for layout, dtype in parts]
    memo.forget()
    chosen = {} if encoding.layer is None else dict(encoding.layer.chosen)
    head = json.dumps({"lengths": [len(each) for each in made], "chosen": chosen}).encode()
    return b"".join((len(head).to_bytes(4, "little"), head, *made))


def _read(result: bytes) -> tuple[list[bytes], Counter[str]]:
    """What `packed_parts` wrote."""
    start = 4 + int.from_bytes(result[:4], "little")
    try:
        head = limits.parse_json(result[4:start].decode())
        lengths, chosen = (
            [int(n) for n in head["lengths"]],
            Counter({str(k): int(n) for k, n in head["chosen"].items()}),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Bug("a worker sent something else than a packed weight; please report it") from None
    if min(lengths, default=0) < 0 or start + sum(lengths) != len(result):
        raise Bug("a worker sent parts of a weight that do not add up; please report it")
    made = []
    for length in lengths:
        made.append(result[start : start + length])
        start += length
    return made, chosen


def _dumped(what: object, engine: Engine) -> tuple[bytes, tuple[str, ...]]:
    """`what` for another process, and the files that it will read there."""
    import cloudpickle

    places: dict[str, None] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, found: Any) -> Any:
            if isinstance(found, GivenTensor):
                raise TypeError("made by the caller")
            if isinstance(found, ir.ExternalTensor):
                places[str(Path(found.path).absolute())] = None
                return _external, _place(found)
            if isinstance(found, ir.TensorProtoTensor):
                return _inline, (found.raw.SerializeToString(),)
            if isinstance(found, ir.LazyTensor):
                return _lazy, (found._func, int(found.dtype), tuple(found.shape.numpy()), found.name)
            if isinstance(found, Layer):
                return _layer(found, engine)
            if isinstance(found, Format) and formats.get(found.name) is found:
                return formats.get, (found.name,)
            return super().reducer_override(found)

    buffer = io.BytesIO()
    Pickler(buffer).dump(what)
    return buffer.getvalue(), tuple(places)


def _place(tensor: ir.ExternalTensor) -> tuple[Any, ...]:
    path = Path(tensor.path).absolute()
    shape = tuple(tensor.shape.numpy())
    return mirror.url_of(path) or str(path), tensor.offset, tensor.length, int(tensor.dtype), shape, tensor.name or ""


def _external(
    path: str, offset: int | None, length: int | None, dtype: int, shape: tuple[int, ...], name: str
) -> ir.TensorProtocol:
    if storage.is_url(path):
        return _far(path, offset or 0, ir.DataType(dtype), shape, name)
    where = Path(path)
    return ir.ExternalTensor(
        where.name, offset, length, ir.DataType(dtype), shape=ir.Shape(shape), name=name, base_dir=where.parent
    )


def _far(url: str, start: int, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> ir.LazyTensor:
    """A part of a file of a store, which is read when somebody asks for it, and kept nowhere else."""

    def evaluate() -> ir.TensorProtocol:
        nbytes = math.ceil(math.prod(shape) * dtype.itemsize)
        raw = storage.read(url, start, start + nbytes)
        return ir.TensorProtoTensor(onnx.TensorProto(data_type=int(dtype), dims=shape, raw_data=raw))

    return ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(shape), name=name)


def _inline(proto: bytes) -> ir.TensorProtoTensor:
    return ir.TensorProtoTensor(onnx.TensorProto.FromString(proto))


def _lazy(make: Callable[[], ir.TensorProtocol], dtype: int, shape: tuple[int, ...], name: str | None) -> ir.LazyTensor:
    return ir.LazyTensor(make, dtype=ir.DataType(dtype), shape=ir.Shape(shape), name=name)


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


def _layer(layer: Layer, engine: Engine) -> tuple[Any, ...]:
    """How a worker has the same evidence."""
    plain = layer.channel, layer.groups, layer.file.absolute(), layer.numbers, layer.follows
    if not layer.numbers or not engine.unseen(layer.file):
        return Layer, plain
    names = ["gram", "rows", *(["cross", "float_rows"] if layer.follows else [])]
    arrays = {f"{n}.{name}": load_array(layer.file, f"{n}.{name}") for n in layer.numbers for name in names}
    arrays |= {f"{n}.count": np.array(rows_seen(layer.file, n)) for n in layer.numbers}
    return _sent_layer, (plain, arrays)


def _sent_layer(plain: tuple[int, int, Path, tuple[int, ...], bool], arrays: Mapping[str, NDArray]) -> SentLayer:
    return SentLayer(*plain, Counter(), {}, arrays)

"""A model in which a plan is carried out, as a worker opens it: its graph, and what is large in it from other tasks.

Most weights are in most plans as they were in others. So each weight in each form is packed by one task, whatever plans
need it, and its bytes go from worker to worker; a plan's own message holds little more than the nodes.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxq import cluster
from onnxq.cluster import Engine, Task
from onnxq.encoding import lazy, memo
from onnxq.encoding.lazy import EncodedTensor
from onnxq.files import mirror, storage
from onnxq.output import messages, packed_elsewhere
from onnxq.output.write import tensors_to_write
from onnxq.summaries.evidence import Layer

#: Constants of fewer bytes are sent with the graph.
INLINE_BYTES = 1 << 12


@dataclass(frozen=True)
class SentModel:
    """
    Attributes:
        message: for `received`.
        needs: tasks whose results it needs, in this order.
        name: a hash of everything that decides what the model computes.
    """

    message: bytes
    needs: tuple[Task, ...]
    name: str


@dataclass
class _Parts:
    """Where the large constants of a model come from: by number, a word and what goes with it."""

    sources: list[tuple[object, ...]] = field(default_factory=list)
    needs: dict[str, Task] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)

    def take(self, value: ir.Value, *source: object) -> None:
        """Let the graph name a place in the stead of what `value` holds."""
        tensor = value.const_value
        assert tensor is not None
        shape, name = ir.Shape(tensor.shape.numpy()), tensor.name or ""
        number, kind = str(len(self.sources)), tensor.dtype
        value.const_value = ir.ExternalTensor(number, 0, 0, kind, shape=shape, name=name, base_dir="")
        self.sources.append(source)

    def need(self, task: Task) -> int:
        """The number of a task among those that are needed."""
        self.needs.setdefault(task.name, task)
        return list(self.needs).index(task.name)


class Sender:
    """Makes messages of models for an engine's workers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unseen: dict[Path, bool] = {}
        self._digests: dict[Hashable, tuple[ir.TensorProtocol, str]] = {}

    def sent(self, model: ir.Model) -> SentModel:
        """The message of a rewritten `model`, which is used up.

        Raises:
            BadRecipe: workers do not see a file that they have to read.
        """
        parts = _Parts()
        weights: dict[Hashable, list[ir.Value]] = {}
        for value in tensors_to_write(model):
            tensor = value.const_value
            assert tensor is not None
            if isinstance(tensor, EncodedTensor) and tensor.encoding.tensor.nbytes >= packed_elsewhere.LEAST_BYTES:
                weights.setdefault(lazy.key_of(tensor.encoding), []).append(value)
            elif tensor.nbytes >= INLINE_BYTES and tensor.dtype != ir.DataType.STRING:
                self._plain(parts, value)
        for values in weights.values():
            self._packed(parts, values)
        cluster.require_readable(self._engine, *parts.files)
        message = pickle.dumps((ir.to_proto(model).SerializeToString(), parts.sources))
        files = [[path, *mirror.identity_of(path)] for path in parts.files]
        content = repr((hashlib.blake2b(message, digest_size=20).hexdigest(), list(parts.needs), files))
        name = hashlib.blake2b(content.encode(), digest_size=20).hexdigest()
        return SentModel(message, tuple(parts.needs.values()), name)

    def _packed(self, parts: _Parts, values: Sequence[ir.Value]) -> None:
        """A weight that a task packs; if none can, its bytes."""
        tensor = values[0].const_value
        assert isinstance(tensor, EncodedTensor)
        what = packed_elsewhere.packed(tensor.encoding, values)
        try:
            known = messages.named(what)
            unseen = [layer for layer in known.layers if self._is_unseen(layer)]
            message, needs = functools.partial(_message, what, unseen), tuple(map(evidence_task, unseen))
            task = packed_elsewhere.packing(tensor.encoding, packed_elsewhere.part_sizes(values), known, message, needs)
        except Exception:  # whatever a library's or a caller's own object raises that cannot be sent
            for value in values:
                self._given(parts, value)
            return
        cluster.require_readable(self._engine, *known.places)
        number = parts.need(task)
        for part, value in enumerate(values):
            parts.take(value, "part", number, part)

    def _plain(self, parts: _Parts, value: ir.Value) -> None:
        """A constant that lies in a file, here or in a store, or is in memory."""
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            self._given(parts, value)
            return
        place = messages.place_of(tensor)
        if not storage.is_url(place[0]):
            parts.files[place[0]] = None
            parts.take(value, "file", *place)
            return
        start, content = tensor.offset or 0, [place, *mirror.identity_of(tensor.path)]
        arguments = place[0], start, start + tensor.nbytes
        task = Task(storage.read, arguments, cluster.named(storage.read, content), f"'{place[5]}'", is_kept=False)
        parts.take(value, "whole", parts.need(task))

    def _given(self, parts: _Parts, value: ir.Value) -> None:
        """A constant that only this process has."""
        tensor = value.const_value
        assert tensor is not None
        name = cluster.named(cluster.as_given, self._digest(tensor))
        what = f"'{value.name}'"
        task = Task(cluster.as_given, lambda: (tensor.tobytes(),), name, what, is_kept=False)
        parts.take(value, "whole", parts.need(task))

    def _digest(self, tensor: ir.TensorProtocol) -> str:
        """A hash of its bytes, asked for once of what the model keeps, and of what is made of that in one way."""
        is_made = isinstance(tensor, ir.LazyTensor) and memo.DERIVED not in tensor.meta
        if isinstance(tensor, EncodedTensor) or is_made:
            return hashlib.blake2b(tensor.tobytes(), digest_size=20).hexdigest()
        key = memo.identity(tensor)
        if key not in self._digests:
            self._digests[key] = tensor, hashlib.blake2b(tensor.tobytes(), digest_size=20).hexdigest()
        return self._digests[key][1]

    def _is_unseen(self, layer: Layer) -> bool:
        if layer.file not in self._unseen:
            self._unseen[layer.file] = messages.is_unseen(layer, self._engine)
        return self._unseen[layer.file]


def _message(what: object, unseen: Sequence[Layer]) -> tuple[bytes]:
    return (messages.message_of(what, messages.evidence_beside(unseen)),)


def evidence_task(layer: Layer) -> Task:
    """A task that gives what is known of a layer to those that need it."""
    name = cluster.named(cluster.as_given, ["evidence", messages.evidence_digest(layer)])
    return Task(cluster.as_given, lambda: (messages.evidence_bytes(layer),), name, "evidence", is_kept=False)


def received(message: bytes, needed: Sequence[bytes]) -> ir.Model:
    """On a worker: the model of a message.

    Args:
        needed: what the tasks gave that it needs.
    """
    graph, sources = pickle.loads(message)  # of whoever sent this task, and so code that it may run here anyway
    model = ir.from_proto(onnx.ModelProto.FromString(graph))
    known: dict[int, list[bytes]] = {}
    for value in tensors_to_write(model):
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        word, *rest = sources[int(str(tensor.location))]
        if word == "file":
            value.const_value = messages.external(*rest)
            continue
        number, part = rest if word == "part" else (*rest, None)
        if part is not None and number not in known:
            known[number] = packed_elsewhere.parts_in(needed[number])[0]
        raw = needed[number] if part is None else known[number][part]
        value.const_value = messages.in_memory(raw, int(tensor.dtype), tensor.shape.numpy(), tensor.name or "")
    return model

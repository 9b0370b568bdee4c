"""Weights packed by a cluster's workers while the model is written: each reads its part of the file, and sends bytes.

A task is one weight in one format, with all of its forms (codes, scales, zero points). Workers read the numbers where
they lie, so that none holds a model; only a few results are under way at a time, so that nor does this process.
What other processes could not make, it makes itself.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from onnxq import algorithms, cluster
from onnxq.cluster import Engine, Task
from onnxq.encoding import lazy, memo
from onnxq.encoding.lazy import EncodedTensor, Encoding
from onnxq.files import limits, mirror
from onnxq.layouts import Layout
from onnxq.output.messages import Named, evidence_for, message_of, named, opened
from onnxq.output.write import tensors_to_write

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
    cluster.require_readable(engine, *{place for weight in sendable for place in weight.known.places})
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
            data_type=int(tensor.dtype), dims=tensor.shape.numpy(), raw_data=results.take(weight, part)
        )
        return ir.TensorProtoTensor(proto)

    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


@dataclass
class _Weight:
    """One weight in one format, and the values that hold its parts."""

    encoding: Encoding
    values: list[ir.Value] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    message: bytes = b""
    known: Named = field(default_factory=lambda: Named("", (), ()))

    def is_sendable(self, engine: Engine) -> bool:
        """Whether another process can make it; then `message` says how."""
        try:
            what = packed(self.encoding, self.values)
            self.message, self.known = message_of(what, evidence_for(engine)), named(what)
            self.nbytes = part_sizes(self.values)
        except Exception:  # whatever a library's or a caller's own object raises that cannot be sent
            return False
        return True

    def task(self) -> Task:
        return packing(self.encoding, self.nbytes, self.known, (self.message,))


def packed(encoding: Encoding, values: Sequence[ir.Value]) -> tuple[Encoding, list[tuple[Layout, ir.DataType]]]:
    """What `packed_parts` gets in a message: an encoding, and the parts of it that these values hold."""
    tensors = [value.const_value for value in values]
    return encoding, [(each.layout, each.dtype) for each in tensors if isinstance(each, EncodedTensor)]


def part_sizes(values: Sequence[ir.Value]) -> list[int]:
    """How many bytes the parts of an encoding have that these values hold."""
    return [value.const_value.nbytes for value in values if value.const_value is not None]


def packing(
    encoding: Encoding, sizes: Sequence[int], known: Named, arguments: Any, needs: tuple[Task, ...] = ()
) -> Task:
    """The task of packing a weight, the same for whoever wants the same of it.

    Args:
        sizes: bytes of its parts (`part_sizes`).
        known: the name of what is packed (`messages.named`).
        arguments: a message of it (`messages.message_of`), or a function that makes one.
        needs: evidence that goes with it.
    """
    files = [[mirror.url_of(path) or path, *mirror.identity_of(path)] for path in known.places]
    name = cluster.named(packed_parts, [known.digest, files])
    read = functools.partial(parts_in, sizes=sizes)
    return Task(packed_parts, arguments, name, f"'{encoding.tensor.name or 'a weight'}'", needs=needs, read=read)


class _Results:
    """Results in their order; those of the weights that were passed over wait for whoever wants them."""

    def __init__(self, engine: Engine, weights: Sequence[_Weight]) -> None:
        self._weights = weights
        self._come = cluster.results(engine, (weight.task() for weight in weights))
        self._next = 0
        self._held: dict[int, list[bytes]] = {}
        self._left = [len(weight.values) for weight in weights]

    def take(self, weight: int, part: int) -> bytes:
        while self._next <= weight:
            made, chosen = next(self._come)
            layer = self._weights[self._next].encoding.layer
            if layer is not None:
                layer.chosen.clear()  # of what was tried before
                layer.chosen.update(chosen)
            self._held[self._next] = made
            self._weights[self._next].message = b""
            self._next += 1
        found = self._held[weight][part]
        self._left[weight] -= 1
        if not self._left[weight]:
            del self._held[weight]
        return found


def packed_parts(message: bytes, needed: tuple[bytes, ...] = ()) -> bytes:
    """On a worker: the bytes of each part of a weight.

    Args:
        needed: evidence that the worker has not.
    """
    encoding, parts = opened(message, needed)
    made = [encoding.part(layout, dtype).tobytes() for layout, dtype in parts]
    memo.forget()
    chosen = {} if encoding.layer is None else dict(encoding.layer.chosen)
    head = json.dumps({"lengths": [len(each) for each in made], "chosen": chosen}).encode()
    return b"".join((len(head).to_bytes(4, "little"), head, *made))


def parts_in(
    result: bytes, who: str = "a worker", sizes: Sequence[int] | None = None
) -> tuple[list[bytes], Counter[str]]:
    """What `packed_parts` wrote: its parts, and which algorithms data chose.

    Args:
        sizes: bytes of the parts, for whoever knows them.

    Raises:
        BadRecipe: it is something else.
    """
    start = 4 + int.from_bytes(result[:4], "little")
    try:
        head = limits.parse_json(result[4:start].decode())
        lengths, chosen = list(head["lengths"]), Counter({**head["chosen"]})
    except (ValueError, KeyError, TypeError):
        raise cluster.unlike("a packed weight", who) from None
    if not all(type(n) is int and n >= 0 for n in (*lengths, *chosen.values())):
        raise cluster.unlike("a packed weight", who)
    if start + sum(lengths) != len(result) or (sizes is not None and lengths != list(sizes)):
        raise cluster.unlike("the parts of a weight that it was asked for", who)
    made = []
    for length in lengths:
        made.append(result[start : start + length])
        start += length
    return made, chosen

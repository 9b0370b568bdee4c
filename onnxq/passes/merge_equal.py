"""Equal constants are kept once, but for parameters that are equal by chance: those of norms and zeros before training,
and some after it. A checkpoint that is made of the quantized file has each by its own name, as its readers may change
it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.origin import ORIGIN

#: Numbers of a constant that is compared with others.
MOST = 1 << 16


class MergeEqual(ir.passes.InPlacePass):
    """Let all that read equal constants of a graph, up to `MOST` numbers, read the first of them.

    1. Those that may be parameters stay: floats, more than one of them or of a module, by no name that exporters make
       up. What was computed of one is that.
    2. But matrices of several numbers that are equal are one weight, as a table and a head are.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for owner in graph.graphs(model):
            for values in equal_constants(owner):
                is_weight = len(values) > 1 and _is_weight(values[0].const_value)
                same: dict[str, list[ir.Value]] = {}
                for value in values:
                    same.setdefault("" if is_weight else _parameter(value), []).append(value)
                for first, *others in same.values():
                    keep_one(first, others)
                    modified |= bool(others)
        return ir.passes.PassResult(model, modified=modified)


def equal_constants(owner: ir.Graph) -> Iterator[list[ir.Value]]:
    """The constants of a graph that are no outputs of it, those in one list that are equal; each is in one."""
    found: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in owner.initializers.values():
        tensor = graph.constant(value)
        if tensor is not None and tensor.size <= MOST and not value.is_graph_output():
            text = tensor.dtype == ir.DataType.STRING
            raw = repr(tensor.numpy().tolist()).encode() if text else tensor.tobytes()
            key = (tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha512(raw).digest())
            found.setdefault(key, []).append(value)
    yield from found.values()


def keep_one(kept: ir.Value, others: Iterable[ir.Value]) -> None:
    """Let who reads others of its graph read the one that is kept, and forget these."""
    for other in others:
        other.replace_all_uses_with(kept)
        assert other.graph is not None
        del other.graph.initializers[other.name or ""]


def _is_weight(tensor: ir.TensorProtocol | None) -> bool:
    """Whether it is a matrix that is equal to another one by no chance."""
    if tensor is None or sum(size > 1 for size in tensor.shape.numpy()) < 2 or tensor.dtype not in graph.FLOATS:
        return False
    w = tensor.numpy().reshape(-1)
    return bool((w != w[:1]).any())


def _parameter(value: ir.Value) -> str:
    """What the parameter is called that a constant may be; "" if it is none."""
    name, tensor = str(value.meta.get(ORIGIN, value.name)), value.const_value
    assert tensor is not None
    is_made_up = "::" in name or name.startswith("/")
    may_be = tensor.dtype in graph.FLOATS and (tensor.size > 1 or "." in name) and not is_made_up
    return name if may_be else ""

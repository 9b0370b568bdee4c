"""Weights that several parts read, such as the embedding of an encoder and its decoder: one format for all of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

import onnx_ir as ir

from onnxq import formats
from onnxq.encoding import lazy
from onnxq.model.weights import Weight, find_weights
from onnxq.plan import Choice, Method, Plan

#: Where a weight is read: (part, node).
Reader = tuple[str, str]


def shared_weights(models: Mapping[str, ir.Model]) -> list[tuple[Reader, ...]]:
    """The readers of each weight that is in several of these prepared models, by part name, with the same bytes.

    Only weights of which another part has one of the same type and shape are read.
    """
    alike: dict[Hashable, list[tuple[str, Weight]]] = defaultdict(list)
    for part, model in models.items():
        for weight in find_weights(model):
            alike[weight.tensor.dtype, weight.shape].append((part, weight))
    found = []
    for group in alike.values():
        if len({part for part, _ in group}) > 1:
            equal: dict[bytes, list[Reader]] = defaultdict(list)
            for part, weight in group:
                equal[_digest(weight.tensor)].append((part, weight.node.name or ""))
            found += [tuple(readers) for readers in equal.values() if len({part for part, _ in readers}) > 1]
    return found


def _digest(tensor: ir.TensorProtocol) -> bytes:
    digest = hashlib.blake2b(tensor.tobytes(), digest_size=20).digest()
    lazy.release(tensor)
    return digest


def agree(plans: Mapping[str, Plan], shared: Iterable[tuple[Reader, ...]]) -> dict[str, Plan]:
    """The plans that have to change so that every shared weight has one format, the finest that a part chose for it."""
    changed = dict(plans)
    for readers in shared:
        choices = {(part, node): changed[part].choices.get(node) for part, node in readers if part in changed}
        known = {reader: choice for reader, choice in choices.items() if choice is not None}
        if len({_stored_as(choice) for choice in known.values()}) < 2:
            continue
        (finest, _), best = max(known.items(), key=lambda item: _fineness(item[1]))
        for (part, node), choice in known.items():
            if _stored_as(choice) != _stored_as(best):
                reason = f"as part '{finest}' has this weight"
                changed[part] = changed[part].replacing([_like(best, choice, node, reason)])
    return {part: plan for part, plan in changed.items() if plan != plans[part]}


def _stored_as(choice: Choice) -> tuple[str | None, ...]:
    """What decides the bytes of the weight: two choices with the same have the same codes and scales."""
    if choice.method in (Method.KEEP, Method.HALF):
        return (choice.method.value,)
    return choice.format, str(choice.block), choice.granularity


def _fineness(choice: Choice) -> tuple[int, int]:
    """Bits, and then how few weights share a scale."""
    if choice.method is Method.KEEP or choice.format is None:
        return 32 if choice.method is Method.KEEP else 16, 0
    shared_by = {None: choice.block or 1 << 20, "channel": 1 << 20, "tensor": 1 << 40}[choice.granularity]
    return formats.get(choice.format).bits, -shared_by


def _like(best: Choice, choice: Choice, node: str, reason: str) -> Choice:
    """`choice` with its weight as `best` has it; a kernel that computes in integers stays the other part's."""
    method = Method.STORED if best.method in (Method.STATIC, Method.DYNAMIC) else best.method
    if method is Method.PACKED and choice.op != best.op:
        method = Method.STORED
    return dataclasses.replace(choice.like(best, method, reason), node=node)

"""Inputs made up for a model nobody gave data for: legal ones, so that it runs; meaningful ones it cannot know."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq import graph
from onnxq.errors import BadModel
from onnxq.runtime import Feed, Input, Session

#: Sizes tried for free dimensions, in this order, until the model runs.
_SIZES = (16, 32, 64, 128, 224, 256, 512, 8, 4, 2, 1)
#: What guessed dimensions may multiply up to in one input: three of 512 would be half a gigabyte.
_MOST_ELEMENTS = 1 << 22
_BATCH = ("batch", "n", "bs", "batch_size", "unk__", "-1")


def synthesize(model: ir.Model, session: Session, count: int, seed: int = 0) -> list[Feed]:
    """`count` legal samples for `session`, or none if no guess at the free dimensions makes it run.

    Integers are drawn below the number of rows of the table they look up; other integers, which are mostly masks, are
    ones. Floats are normally distributed, or zero for inputs that look like a cache.
    """
    limits = {i.name: _rows(model, i.name) for i in session.inputs}
    for sizes in _guesses(session.inputs):
        if any(_guessed_elements(i, sizes) > _MOST_ELEMENTS for i in session.inputs):
            continue
        samples = _samples(session.inputs, sizes, limits, np.random.default_rng(seed))
        first = next(samples)
        try:
            session.run(first)
        except BadModel:
            continue
        return [first, *itertools.islice(samples, count - 1)]
    return []


def _samples(
    inputs: tuple[Input, ...], sizes: dict[str, int], limits: dict[str, int | None], rng: np.random.Generator
) -> Iterator[Feed]:
    while True:
        yield {i.name: _draw(i, sizes, limits[i.name], rng) for i in inputs}


def _guessed_elements(i: Input, sizes: dict[str, int]) -> int:
    return math.prod(sizes[_symbol(i, axis)] for axis, dim in enumerate(i.shape or ()) if _free(dim))


def _guesses(inputs: tuple[Input, ...]) -> Iterator[dict[str, int]]:
    """Values for the free dimensions, by symbol (unnamed ones get a symbol of their own)."""
    symbols = list(
        dict.fromkeys(_symbol(i, axis) for i in inputs for axis, dim in enumerate(i.shape or ()) if _free(dim))
    )
    past = [s for s in symbols if "past" in s.lower()]
    batch = [s for s in symbols if s not in past and (s.lower().startswith(_BATCH) or s.endswith(":0"))]
    rest = [s for s in symbols if s not in past and s not in batch]
    for size, cached in itertools.product(_SIZES, (0, 1) if past else (0,)):
        guess = dict.fromkeys(batch, 1) | dict.fromkeys(past, cached)
        yield guess | {s: size + cached if "total" in s.lower() else size for s in rest}
    for symbol in rest:  # one dimension for itself: a time axis of 1, say, that the others do not share
        for size, one in itertools.product(_SIZES, (1, 2, 3)):
            yield dict.fromkeys([*batch, *past], 1) | dict.fromkeys(rest, size) | {symbol: one}


def _draw(i: Input, sizes: dict[str, int], limit: int | None, rng: np.random.Generator) -> np.ndarray:
    shape = [
        dim if isinstance(dim, int) and dim >= 0 else sizes[_symbol(i, axis)] for axis, dim in enumerate(i.shape or ())
    ]
    if i.dtype.kind in "iu":
        if limit is not None:
            return rng.integers(0, limit, shape).astype(i.dtype)
        if "position" in i.name.lower():
            return np.broadcast_to(np.arange(shape[-1] if shape else 1), shape).astype(i.dtype)
        return np.ones(shape, i.dtype)
    if i.dtype.kind == "b":
        return np.ones(shape, i.dtype)
    if i.dtype.kind == "O":
        return np.full(shape, "text", object)
    if any(word in i.name.lower() for word in ("past", "state", "cache")):
        return np.zeros(shape, i.dtype)
    return rng.standard_normal(shape).astype(i.dtype)


def _free(dim: int | str | None) -> bool:
    return not isinstance(dim, int) or dim < 0


def _symbol(i: Input, axis: int) -> str:
    dim = (i.shape or ())[axis]
    return dim if isinstance(dim, str) else f"{i.name}:{axis}"


def _rows(model: ir.Model, name: str) -> int | None:
    """Rows of the smallest table that the input called `name` looks up, directly or through shape-only operators."""
    pending = [value for value in model.graph.inputs if value.name == name]
    rows: list[int] = []
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for use in value.uses():
            node, index = use.node, use.idx
            table = graph.constant(node.inputs[0]) if node.inputs else None
            if node.op_type == "Gather" and index == 1 and table is not None:
                rows.append(table.shape.numpy()[graph.attribute_int(node, "axis", 0)])
            elif node.op_type == "EmbedLayerNormalization" and (words := graph.constant(node.inputs[2])) is not None:
                rows.append(words.shape.numpy()[0] if index == 0 else 2)
            elif node.op_type in (
                "Cast",
                "Reshape",
                "Squeeze",
                "Unsqueeze",
                "Flatten",
                "Identity",
                "Transpose",
                "Slice",
            ):
                pending += node.outputs if index == 0 else []
    return min(rows, default=None)

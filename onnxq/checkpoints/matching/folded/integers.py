"""Buffers of whole numbers and flags, such as a permutation of channels: the constant of their name gets theirs, and
what torch's newer exporter says is one in another shape, if it has the same numbers in another order.

The checkpoint is refused where the model has other ones of their sizes by a name that its exporter made up. Of few
numbers, as axes are, that is noted, and refused where the exporter says that they are of such a buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.sources import Made, Sources
from onnxq.checkpoints.matching.parameters import FEW, is_of_buffers, is_of_older_exporter
from onnxq.model import graph

Constant = tuple[str, ir.Value, ir.TensorProtocol]
#: Sentences of one kind.
MOST = 4


def fill(model: ir.Model, tensors: Mapping[str, Any], sources: Sources) -> tuple[list[str], list[str], list[str]]:
    """(the tensors whose numbers the model was given, sentences about those that it has other ones of, and about those
    that it may have other ones of)."""
    constants = [
        (name, value, tensor)
        for owner in graph.graphs(model)
        for name, value in owner.initializers.items()
        if (tensor := graph.constant(value)) is not None and tensor.size > 1 and tensor.dtype.numpy().kind in "iub"
    ]
    placed = list[str]()
    others: dict[tuple[int, ...], list[tuple[str, NDArray, str]]] = {}
    for name, value, tensor in constants:
        source, own = name if name in tensors else sources.renamed(name), tensor.numpy()
        said = sources.of(value)
        given = tensors.get(source)
        if isinstance(given, np.ndarray) and given.dtype.kind in "iub" and given.shape == own.shape:
            made = given.astype(own.dtype)
            if np.array_equal(made, given):
                value.const_value = ir.tensor(made, name=name)
                placed.append(source)
        elif (source := _source_of(said, own, tensors)) and _is_reordered(own, tensors[source], said):
            value.const_value = ir.tensor(tensors[source].astype(own.dtype).reshape(own.shape), name=name)
            placed.append(source)
        elif source or not _is_shape(value):
            others.setdefault(_sizes(own), []).append((name, own.ravel(), source))
    here = {sources.renamed(name) for owner in graph.graphs(model) for name in owner.initializers}
    told, perhaps = list[str](), list[str]()
    for source in tensors if others else ():
        found = tensors[source]
        is_known = source in placed or not isinstance(found, np.ndarray) or found.dtype.kind not in "iub"
        like = [] if is_known else [each for each in others.get(_sizes(found), ()) if each[1].dtype == found.dtype]
        if is_told := not is_known and found.size < FEW and bool(sources):
            like = [each for each in like if each[2] == source]
        is_other = like and not any(np.array_equal(own, found.ravel()) for _, own, _ in like)
        if is_other and not is_of_buffers(found.astype(np.float32)):  # as places are
            (told if is_told or found.size >= FEW else perhaps).append(
                f"'{source}' goes nowhere, and '{like[0][0]}' of the model, of its sizes, keeps other numbers"
            )
    return placed, told, [*perhaps, *_chosen(constants, tensors, here)]


def _chosen(constants: Sequence[Constant], tensors: Mapping[str, Any], here: Collection[str]) -> list[str]:
    """Sentences about truth values that torch's older exporter may have computed of floats of their sizes, but for what
    is true up to a place, as masks of what comes later are.

    Args:
        here: tensors that the model has constants of, which are less likely.
    """
    found = list[str]()
    for name, _, tensor in constants:
        own = tensor.numpy()
        if own.dtype.kind != "b" or own.size < FEW or not is_of_older_exporter(name) or _is_stepped(own):
            continue
        like = [each for each, x in tensors.items() if isinstance(x, np.ndarray) and _sizes(x) == _sizes(own)]
        like = sorted((each for each in like if tensors[each].dtype.kind in "fV"), key=lambda each: each in here)
        if source := next(iter(like), ""):
            found.append(f"'{name}' of the model keeps its truth values, and may be computed from '{source}'")
    return found[:MOST]


def _is_shape(value: ir.Value) -> bool:
    """Whether it is nothing but the shape of what nodes make: that is the program's, whatever buffers are as long."""
    return all(graph.is_op(use.node, "Reshape", "Expand", "Tile") and use.idx == 1 for use in value.uses())


def _is_stepped(x: NDArray[np.bool_]) -> bool:
    """Whether it goes from false to true, or back, once along an axis, in each line of that in the same direction."""
    steps = (np.diff(x.astype(np.int8), axis=axis) for axis in range(x.ndim))
    return any(step.size and (bool((step >= 0).all()) or bool((step <= 0).all())) for step in steps)


def _source_of(made: Made | None, own: NDArray, tensors: Mapping[str, Any]) -> str:
    """The buffer that a constant is in another shape, as far as its exporter says it; "" if none."""
    source = made.parameters[0] if made is not None and made.is_whole and len(made.parameters) == 1 else ""
    found = tensors.get(source)
    return source if isinstance(found, np.ndarray) and found.dtype.kind in "iub" and found.size == own.size else ""


def _is_reordered(own: NDArray, given: NDArray, made: Made | None) -> bool:
    """Whether vectors have the same numbers: what computes with these would have made others of them, and what turns
    them would have had them in another order."""
    is_vector = len(_sizes(own)) == len(_sizes(given)) == 1 and made is not None and made.is_in_order
    return is_vector and np.array_equal(np.sort(own, axis=None), np.sort(given, axis=None))


def _sizes(x: NDArray) -> tuple[int, ...]:
    return tuple(size for size in x.shape if size != 1)

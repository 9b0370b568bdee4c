"""Buffers of whole numbers and flags, such as a permutation of channels: the constant of their name gets theirs, and
the checkpoint is refused where the model has other ones of their sizes by a name that its exporter made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.parameters import FEW, is_of_buffers
from onnxq.model import graph


def fill(
    model: ir.Model, tensors: Mapping[str, Any], renamed: Callable[[str], str] = str
) -> tuple[list[str], list[str]]:
    """(the tensors whose numbers the model was given, sentences about those that it may have other ones of)."""
    constants = [
        (name, value, tensor)
        for owner in graph.graphs(model)
        for name, value in owner.initializers.items()
        if (tensor := graph.constant(value)) is not None and tensor.size > 1 and tensor.dtype.numpy().kind in "iub"
    ]
    placed = list[str]()
    others: dict[tuple[int, ...], list[tuple[str, NDArray]]] = {}
    for name, value, tensor in constants:
        source, own = name if name in tensors else renamed(name), tensor.numpy()
        given = tensors.get(source)
        if isinstance(given, np.ndarray) and given.dtype.kind in "iub" and given.shape == own.shape:
            made = given.astype(own.dtype)
            if np.array_equal(made, given):
                value.const_value = ir.tensor(made, name=name)
                placed.append(source)
        elif own.size >= FEW:
            others.setdefault(_sizes(own), []).append((name, own.ravel()))
    told = []
    for source in tensors if others else ():
        found = tensors[source]
        is_known = source in placed or not isinstance(found, np.ndarray) or found.dtype.kind not in "iub"
        like = [] if is_known else [each for each in others.get(_sizes(found), ()) if each[1].dtype == found.dtype]
        is_other = like and not any(np.array_equal(own, found.ravel()) for _, own in like)
        if is_other and not is_of_buffers(found.astype(np.float32)):  # as places are
            told.append(f"'{source}' goes nowhere, and '{like[0][0]}' of the model, of its sizes, keeps other numbers")
    return placed, told


def _sizes(x: NDArray) -> tuple[int, ...]:
    return tuple(size for size in x.shape if size != 1)

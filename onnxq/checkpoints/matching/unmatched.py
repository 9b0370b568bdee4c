"""Floats of a checkpoint that went nowhere, though weights of their shapes in the model were given nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.checkpoints.matching.put import LIKE
from onnxq.checkpoints.stored import real
from onnxq.model import graph
from onnxq.model.origin import ORIGIN
from onnxq.quality import sqnr


def constants(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The constants of floats, but for single numbers."""
    return {
        name: tensor
        for owner in graph.graphs(model)
        for name, value in owner.initializers.items()
        if (tensor := graph.constant(value)) is not None and tensor.dtype in graph.FLOATS and tensor.size > 1
    }


class Unmatched:
    """The constants of a prepared model that have the numbers which they had in the file.

    Args:
        before: its constants in the file.
        now: those that it had when it was prepared.
    """

    def __init__(
        self, model: ir.Model, before: Mapping[str, ir.TensorProtocol], now: Mapping[str, ir.TensorProtocol]
    ) -> None:
        kept = {name for name, tensor in before.items() if now.get(name) is tensor}
        values = [value for owner in graph.graphs(model) for value in owner.initializers.values()]
        self.values = [value for value in values if {value.name, value.meta.get(ORIGIN)} & kept]

    def beside(self, tensors: Mapping[str, Any], unused: Collection[str]) -> tuple[list[str], list[str]]:
        """(tensors among `unused`, what in the model has their shapes and was given nothing)."""
        free: dict[tuple[int, ...], list[ir.Value]] = {}
        for value in self.values:
            tensor = graph.constant(value)
            if tensor is not None and tensor.dtype in graph.FLOATS and value.uses():
                free.setdefault(_sizes(tensor.shape.numpy()), []).append(value)
        lost, left = [], dict[str, None]()
        for name in unused:
            found = tensors[name]
            if not isinstance(found, np.ndarray) or found.dtype.kind not in "fV" or found.size < 2:
                continue
            sizes = _sizes(found.shape)
            fitting = free.get(sizes, [])
            is_there = len(sizes) == 1 and any(_is_like(value, name, found) for value in fitting)
            if fitting and not is_there:
                lost.append(name)
                left |= dict.fromkeys(map(_called, fitting))
        return lost, list(left)


def _sizes(shape: Collection[int]) -> tuple[int, ...]:
    """A shape, whichever way it lies."""
    return tuple(sorted(size for size in shape if size != 1))


def _is_like(value: ir.Value, name: str, found: np.ndarray) -> bool:
    """Whether nothing is lost, for the model has such numbers: buffers that are computed from the configuration."""
    tensor = graph.constant(value)
    assert tensor is not None
    own = tensor.numpy().astype(np.float32).ravel()
    return bool(np.ptp(own)) and sqnr(own, real(name, found).astype(np.float32).ravel()) >= LIKE


def _called(value: ir.Value) -> str:
    """A product by its node, anything else by itself."""
    node = next(iter(value.uses())).node
    return (node.name if graph.is_op(node, "MatMul", "Gemm") else value.name) or ""

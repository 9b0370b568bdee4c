"""Layers of a checkpoint that a model multiplies by at once: their rows one after another, as onnxruntime-genai has
them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.schemes import FLOATS
from onnxq.checkpoints.stored import Layer, Stored, of_shape, real
from onnxq.errors import BadModel
from onnxq.model import graph

#: By the last word of a product's name, those of the layers in it, in order.
_PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def join(layers: Sequence[Layer], model: ir.Model) -> list[Layer]:
    """The layers, those of floats joined that products of the model have in one and none has by itself."""
    words = {word for node in graph.nodes(model) for word in (node.name or "").replace("/", ".").split(".")}
    found = list(layers)
    for word, parts in _PARTS.items():
        if word not in words or words.intersection(parts):
            continue
        by_name = {layer.name: layer for layer in found if layer.scheme == FLOATS}
        for first in [name for name in by_name if name.endswith(f".{parts[0]}")]:
            before = first.removesuffix(parts[0])
            if any(f"{before}{part}" not in by_name for part in parts) or f"{before}{word}" in by_name:
                continue
            each = [by_name[f"{before}{part}"] for part in parts]
            tensors = tuple(name for layer in each for name in layer.tensors)
            made = Layer(f"{before}{word}", FLOATS, tensors, functools.partial(_open, each), is_joined=True)
            found[found.index(each[0])] = made
            found = [layer for layer in found if layer not in each]
    return found


def _open(layers: Sequence[Layer]) -> Stored:
    each = [layer.open() for layer in layers]
    first = each[0]
    if any(stored.shape[1] != first.shape[1] for stored in each):
        raise BadModel(f"'{first.source}' has another number of inputs than what is joined with it")

    def read() -> NDArray:
        return np.concatenate([stored.floats() for stored in each])

    bias = None
    if any(stored.bias is not None for stored in each):
        bias = f"{layers[0].name}.bias", np.concatenate([_bias_of(stored) for stored in each])
    n = sum(stored.shape[0] for stored in each)
    return replace(first, shape=(n, first.shape[1]), read=read, bias=bias)


def _bias_of(stored: Stored) -> NDArray[np.float32]:
    """Zeros where there is none; a number for each of its own rows, whatever those of the others come to."""
    if stored.bias is None:
        return np.zeros(stored.shape[0], np.float32)
    name, numbers = stored.bias
    return real(name, of_shape(name, numbers, stored.shape[0])).astype(np.float32)

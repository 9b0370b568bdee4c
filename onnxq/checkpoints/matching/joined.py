"""Layers of a checkpoint that a model multiplies by at once: their rows one after another, as onnxruntime-genai has
them; and attention of torch, whose layer of queries, keys and values a model may multiply by in parts.

Source: torch's `_in_projection_packed`: of queries that are not keys the rows for these come last, in one product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching import put
from onnxq.checkpoints.matching.folded import biases
from onnxq.checkpoints.matching.folded.batchnorms import give
from onnxq.checkpoints.matching.names import module_of_reader
from onnxq.checkpoints.matching.parameters import is_of_older_exporter
from onnxq.checkpoints.schemes import FLOATS
from onnxq.checkpoints.stored import Layer, Stored, key, of_shape, real
from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, weights_of

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


def fill_parts(model: ir.Model, tensors: Mapping[str, Any], renamed: Callable[[str], str]) -> list[str]:
    """Give products that are parts of torch's attention, to which its older exporter leaves no names, their rows of the
    checkpoint's layer; which tensors went there.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    found: dict[str, list[Weight]] = {}
    for node in graph.nodes(model):
        for weight in weights_of(node, least=1) if graph.is_op(node, "MatMul") else ():
            if weight.role.index == 1 and is_of_older_exporter(weight.value.name or ""):
                found.setdefault(module_of_reader(node), []).append(weight)
    names, placed = Names(model), list[str]()
    for module, weights in found.items():
        sources = [renamed(key(module, f"in_proj_{part}")) for part in ("weight", "bias")]
        parts = _parts_of(weights, tensors.get(sources[0]))
        places = [biases.place_of(weight, n) for weight, n in parts]
        if not parts or (sources[1] in tensors) != all(places) or (sources[1] not in tensors and any(places)):
            continue
        w, bias = (real(name, tensors[name]) if name in tensors else None for name in sources)
        start = 0
        for (weight, n), place in zip(parts, places, strict=True):
            assert w is not None
            give(weight.node, 1, w[start : start + n].T, names)
            if place is not None and bias is not None:
                give(*place, bias[start : start + n], names)
            start += n
        placed += [name for name in sources if name in tensors]
    return placed


def _parts_of(weights: Sequence[Weight], layer: Any) -> list[tuple[Weight, int]]:
    """The first products of a module whose outputs together are those of the layer, if they are several."""
    parts, left = list[tuple[Weight, int]](), len(layer) if isinstance(layer, np.ndarray) and layer.ndim == 2 else 0
    for weight in weights if left else ():
        n, k = put.sizes(weight)
        if not left or k != layer.shape[1]:
            break
        parts.append((weight, n))
        left -= n
    return parts if not left and len(parts) > 1 else []


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

"""Layers of a checkpoint that a model multiplies by at once: their rows one after another, as onnxruntime-genai has
them; and attention of torch, whose layer of queries, keys and values a model may multiply by in parts.

Source: torch's `_in_projection_packed`: of queries that are not keys the rows for these come last, in one product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching import put
from onnxq.checkpoints.matching.folded import biases
from onnxq.checkpoints.matching.folded.batchnorms import give
from onnxq.checkpoints.matching.names import first_call, module_of_reader
from onnxq.checkpoints.matching.parameters import is_of_older_exporter
from onnxq.checkpoints.schemes import FLOATS
from onnxq.checkpoints.stored import Layer, Stored, key, of_shape, real
from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, weights_of

#: By the last word of a product's name, those of the layers in it, in order.
_PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
#: Torch's layer of queries, keys and values, which keeps its name where a model takes it apart itself.
_LAYER = "in_proj_weight"


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
    is_there = lambda module: renamed(key(module, "out_proj.weight")) in tensors  # noqa: E731
    for node in graph.nodes(model):
        for weight in weights_of(node, least=1) if graph.is_op(node, "MatMul") else ():
            if weight.role.index == 1 and is_of_older_exporter(weight.value.name or ""):
                found.setdefault(first_call(module_of_reader(node), is_there), []).append(weight)
    names, placed = Names(model), dict[str, None]()
    for module, left in found.items():
        of = _Attention(module, tensors, renamed)
        is_named = any(renamed(name) == of.name(_LAYER) for owner in graph.graphs(model) for name in owner.initializers)
        while left and ((pieces := of.pieces(left)) or (is_named and of.is_output(left[0]))):
            left = left[len(pieces) :]
            placed |= dict.fromkeys(of.fill(pieces, names) if pieces else ())
            if left and of.is_output(left[0]):
                give(left[0].node, 1, of.read("out_proj.weight").T, names)
                placed[of.name("out_proj.weight")], left = None, left[1:]
    return [*placed]


class _Piece(NamedTuple):
    """A product of `n` outputs, and which rows of a part of a module it multiplies by."""

    weight: Weight
    part: str
    start: int
    n: int


@dataclass(frozen=True)
class _Attention:
    """What a checkpoint has for a module of torch's attention."""

    module: str
    tensors: Mapping[str, Any]
    renamed: Callable[[str], str]

    def name(self, part: str) -> str:
        return self.renamed(key(self.module, part))

    def read(self, part: str) -> NDArray[Any]:
        return real(self.name(part), self.tensors[self.name(part)])

    def pieces(self, weights: Sequence[Weight]) -> list[_Piece]:
        """The first products, if their outputs together are those of the layers of queries, keys and values: one layer,
        or three of several sizes; and if these have a bias where the model has one."""
        parts = [f"{part}_proj_weight" for part in "qkv"]
        parts = parts if self._shape(parts[0]) else [_LAYER]
        found, rest = list[_Piece](), list(weights)
        for part in parts:
            left, inputs = self._shape(part) or (0, 0)
            start = 0
            while left > start and rest and put.sizes(rest[0])[1] == inputs:
                n = put.sizes(rest[0])[0]
                found.append(_Piece(rest.pop(0), part, start, n))
                start += n
            if not left or left != start:
                return []
        has_bias = self.name("in_proj_bias") in self.tensors
        return found if all((_place(piece) is not None) == has_bias for piece in found) else []

    def fill(self, pieces: Sequence[_Piece], names: Names) -> list[str]:
        """Give products their rows; which tensors these are."""
        bias, start = self.name("in_proj_bias"), 0
        for piece in pieces:
            give(piece.weight.node, 1, self.read(piece.part)[piece.start : piece.start + piece.n].T, names)
            if (place := _place(piece)) is not None:
                give(*place, self.read("in_proj_bias")[start : start + piece.n], names)
            start += piece.n
        return [*{self.name(piece.part): None for piece in pieces}, *[bias] * (bias in self.tensors)]

    def is_output(self, weight: Weight) -> bool:
        """Whether a product behind those is the layer of outputs: with a bias it keeps its name."""
        is_bare = (
            self.name("out_proj.bias") not in self.tensors and biases.place_of(weight, put.sizes(weight)[0]) is None
        )
        return is_bare and self._shape("out_proj.weight") == put.sizes(weight)

    def _shape(self, part: str) -> tuple[int, ...] | None:
        found = self.tensors.get(self.name(part))
        return found.shape if isinstance(found, np.ndarray) and found.ndim == 2 else None


def _place(piece: _Piece) -> tuple[ir.Node, int] | None:
    return biases.place_of(piece.weight, piece.n)


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

"""The parts of a decoder like Llama, and where a graph has them.

    x = embedding[ids]
    of each layer:  h = norm(x); x += o · attention(rotated q · h, rotated k · h, v · h)
                    h = norm(x); x += down · (silu(gate · h) * (up · h))
    logits = head · norm(x)

Products are told apart by what feeds what: those that read one value are a group, groups come in the order q k v, o,
gate up, down, and inside a group attention and the gate's activation tell which is which. q, k, v and gate, up may be
one product each whose rows follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.conversion.llama.trace import Sources, carried, readers, scalar, vector
from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.weights import Weight, weights_of

Vector = NDArray[np.float32]
_NORMS = {"SimplifiedLayerNormalization": 1, "RMSNormalization": 1, "SkipSimplifiedLayerNormalization": 2}
_GATES = ("Sigmoid", "Swish", "QuickGelu", "Silu")
#: Nodes between a norm's scale and the small number that it adds.
_NORM_NODES = 12


@dataclass(frozen=True, eq=False)
class Part:
    """A matrix [out, in]: a product's weight, or some rows of it; and what is added to its outputs."""

    weight: Weight
    rows: slice
    bias: Vector | None = None

    @property
    def size(self) -> int:
        """Its outputs."""
        return self.rows.stop - self.rows.start

    @property
    def inputs(self) -> int:
        return self.weight.shape[self.weight.role.contraction]


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer."""

    attn_norm: Vector
    q: Part
    k: Part
    v: Part
    o: Part
    ffn_norm: Vector
    gate: Part
    up: Part
    down: Part


@dataclass(frozen=True, eq=False)
class Decoder:
    """What a graph of this architecture is made of; how it turns positions is in `rope.py`.

    Attributes:
        ids: the value that the embedding is looked up by.
        head: None where the embedding is the head too.
        logits: what the head makes.
        epsilon: that norms add.
        size: of an attention head; the table of rotations has half as many angles.
        scales: constants that norms scale by, two of each layer and the last; None: made of several.
    """

    embedding: Weight
    ids: ir.Value
    layers: tuple[Layer, ...]
    norm: Vector
    head: Part
    logits: ir.Value
    epsilon: float
    size: int
    scales: tuple[ir.Value | None, ...]

    @property
    def heads(self) -> int:
        return self.layers[0].q.size // self.size

    @property
    def pairs(self) -> int:
        """Heads of keys and values."""
        return self.layers[0].k.size // self.size

    @property
    def width(self) -> int:
        return self.head.inputs


def find_decoder(model: ir.Model, size: int) -> Decoder:
    """The decoder that `model` is.

    Args:
        model: whose weights are floats.
        size: of an attention head.

    Raises:
        BadModel: it is none; why.
    """
    return _Finder(model, size).decoder()


class _Finder:
    def __init__(self, model: ir.Model, size: int) -> None:
        self.size = size
        self.products: dict[ir.Node, Weight] = {}
        self.tables: list[Weight] = []
        for node in graph.nodes(model):
            for weight in weights_of(node):
                if len(weight.shape) == 2 and node.op_type == "Gather":
                    self.tables.append(weight)
                elif len(weight.shape) == 2 and node.op_type in ("MatMul", "Gemm") and weight.role.index == 1:
                    self.products[node] = weight
        self.sources = Sources(self.products)
        self.epsilons: set[float] = set()
        self.scales: list[ir.Value | None] = []

    def decoder(self) -> Decoder:
        groups: dict[ir.Value, list[ir.Node]] = {}
        for node in self.products:
            value = carried(node.inputs[0])
            if value is not None:
                groups.setdefault(value, []).append(node)
        found = list(groups.items())
        if len(found) < 5 or len(found) % 4 != 1:
            raise BadModel(f"its products read {len(found)} values, where a Llama's read four a layer and one more")
        *body, (last, heads) = found
        layers = tuple(self._layer(body[i : i + 4]) for i in range(0, len(body), 4))
        if len(heads) != 1:
            raise BadModel("several products read its last value, of which one would be the head")
        head = self._whole(heads[0])
        table = next((t for t in self.tables if t.shape == (head.size, head.inputs)), None)
        if table is None:
            raise BadModel(f"no table of {head.size} × {head.inputs} embeds the words that its head tells apart")
        ids = carried(table.node.inputs[1])
        assert ids is not None
        norm = self._norm(last, head.inputs)
        if len(self.epsilons) != 1:
            raise BadModel("its norms add different small numbers, or none that can be told")
        epsilon = next(iter(self.epsilons))
        return Decoder(table, ids, layers, norm, head, heads[0].outputs[0], epsilon, self.size, tuple(self.scales))

    def _layer(self, groups: list[tuple[ir.Value, list[ir.Node]]]) -> Layer:
        (first, attention), (_, mixed), (second, gated), (_, down) = groups
        if len(mixed) != 1 or len(down) != 1 or len(attention) not in (1, 3) or len(gated) not in (1, 2):
            raise BadModel("its products are not those of layers with attention and a gated network")
        o = self._whole(mixed[0])
        q, k, v = self._heads(attention, mixed[0], o.inputs)
        lower = self._whole(down[0])
        gate, up = self._gate(gated, down[0], lower.inputs)
        width = q.inputs
        if any(part.inputs != width for part in (q, k, v, gate, up)) or o.size != width or lower.size != width:
            raise BadModel("its products do not fit one width")
        return Layer(self._norm(first, width), q, k, v, o, self._norm(second, width), gate, up, lower)

    def _heads(self, group: list[ir.Node], mixed: ir.Node, outputs: int) -> tuple[Part, Part, Part]:
        found = self.sources.attention(mixed.inputs[0])
        if found is None or any(len(nodes) != 1 or not nodes <= set(group) for nodes in found):
            raise BadModel(f"what product '{mixed.name}' reads is no attention over products of one value")
        if len(group) == 3:
            q, k, v = (self._whole(next(iter(nodes))) for nodes in found)
        else:
            whole = self._whole(group[0])
            pairs = (whole.size - outputs) // 2
            q, k, v = self._split(whole, outputs, pairs, pairs)
        if q.size != outputs or k.size != v.size or k.size % self.size or q.size % max(1, k.size):
            raise BadModel(f"the products that product '{mixed.name}' mixes are not of whole heads of {self.size}")
        return q, k, v

    def _gate(self, group: list[ir.Node], down: ir.Node, outputs: int) -> tuple[Part, Part]:
        product = next((n for n in self.sources.way(down.inputs[0]) if graph.is_op(n, "Mul")), None)
        if product is None:
            raise BadModel(f"what product '{down.name}' reads has no gate")
        sides = [self.sources.of(x) for x in product.inputs]
        if not all(len(side) == 1 and side <= set(group) for side in sides):
            raise BadModel(f"what product '{down.name}' reads is not gated by a product of the same value")
        if len(group) == 1:
            first, second = self._split(self._whole(group[0]), outputs, outputs)
            return first, second
        active = [any(n.op_type in _GATES for n in self.sources.way(x)) for x in product.inputs]
        if active[0] == active[1]:
            raise BadModel(f"what product '{down.name}' reads has no gate of the kind that Llama has")
        gate, up = (self._whole(next(iter(side))) for side in (sides if active[0] else sides[::-1]))
        return gate, up

    def _split(self, whole: Part, *sizes: int) -> tuple[Part, ...]:
        if min(sizes) < 1 or sum(sizes) != whole.size:
            raise BadModel(f"the outputs of product '{whole.weight.node.name}' are not of its parts")
        parts, start = [], 0
        for size in sizes:
            rows = slice(start, start + size)
            parts.append(Part(whole.weight, rows, None if whole.bias is None else whole.bias[rows]))
            start += size
        return tuple(parts)

    def _whole(self, node: ir.Node) -> Part:
        weight = self.products[node]
        n = weight.shape[weight.role.channel]
        bias = vector(node.inputs[2], n) if node.op_type == "Gemm" and len(node.inputs) > 2 else None
        for reader, index in readers(node.outputs[0]):
            other = vector(reader.inputs[1 - index], n) if graph.is_op(reader, "Add") else None
            bias = bias if other is None else other if bias is None else bias + other
        return Part(weight, slice(0, n), bias)

    def _norm(self, value: ir.Value, width: int) -> Vector:
        """The scale of the norm that made `value`."""
        node, scale, factors_of = value.producer(), None, list[ir.Value | None]()
        while node is not None and graph.is_op(node, "Mul"):
            factors = [vector(x, width) for x in node.inputs]
            index = next((i for i, factor in enumerate(factors) if factor is not None), None)
            if index is None:
                break
            factor = factors[index]
            assert factor is not None
            scale = factor if scale is None else scale * factor
            factors_of.append(carried(node.inputs[index]))
            rest = carried(node.inputs[1 - index])
            node = graph.producer(rest)
        if node is not None and node.op_type in _NORMS and len(node.inputs) > _NORMS[node.op_type]:
            found = vector(node.inputs[_NORMS[node.op_type]], width)
            self.epsilons.add(round(graph.attribute_float(node, "epsilon", 1e-5), 12))
            scale = found if scale is None or found is None else scale * found
            factors_of.append(carried(node.inputs[_NORMS[node.op_type]]))
        elif node is not None:
            self.epsilons |= set(_small(node))
        if scale is None:
            raise BadModel(f"'{value.name}' is not made by a norm with {width} scales")
        self.scales.append(factors_of[0] if len(factors_of) == 1 else None)
        return scale


def _small(node: ir.Node) -> set[float]:
    """The number added under the root of a norm that is spelled out."""
    pending: list[ir.Node | None] = [node]
    for _ in range(_NORM_NODES):
        at = pending.pop(0) if pending else None
        if at is None:
            continue
        if graph.is_op(at, "Add"):
            numbers = [number for x in at.inputs if (number := scalar(x)) is not None]
            return {round(number, 12) for number in numbers[:1]}
        pending += [x.producer() for x in at.inputs if x is not None]
    return set()

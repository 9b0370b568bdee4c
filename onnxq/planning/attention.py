"""Attention as models spell it: softmax(scale · q · kᵀ + mask) · v, in up to a dozen nodes around a Softmax; and which
become one node: all in float32, where products are computed by kernels of the onnxq domain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.plan import Choice, Method, Plan
from onnxq.recipe import KEEP, Recipe
from onnxq.targets import Target

#: What is chosen in the place of a score to hide it must be so low that adding it to any score gives it again.
HIDDEN = -1e30
#: Version of the standard operators from which on Softmax has one axis, the last one if it does not say which.
ONE_AXIS = 13


@dataclass(frozen=True)
class Attention:
    """The parts of an attention.

    Attributes:
        softmax: the node that it is called after.
        product: the one that multiplies by v, whose output is that of the attention.
        inner: the nodes that it takes the place of, both products among them.
        q, v: [..., S, D] and [..., T, E].
        k: [..., D, T]; the input of `turn` where there is one.
        turn: the Transpose that makes kᵀ, whose last two axes are exchanged once more.
        scores: the scaled products.
        mask: what is added to them, or None.
        hides: a Where in the place of that, which puts a low number in the place of some.
        scale: of the products.
    """

    softmax: ir.Node
    product: ir.Node
    inner: tuple[ir.Node, ...]
    q: ir.Value
    k: ir.Value
    v: ir.Value
    turn: ir.Node | None
    scores: ir.Value
    mask: ir.Value | None
    hides: ir.Node | None
    scale: float

    @property
    def k_axes(self) -> list[int] | None:
        """In which order the axes of the input of `turn` make [..., T, D]; None where there is no Transpose."""
        if self.turn is None:
            return None
        axes = axes_of(self.turn)
        return [*axes[:-2], axes[-1], axes[-2]]


def attention_at(node: ir.Node) -> Attention | None:
    """The attention whose weights the Softmax `node` makes.

    1. Behind it one MatMul reads the weights, and nobody else.
    2. Before it an Add of a mask, or a Where that hides scores, or neither; then Mul and Div by single constants; then
       the product of q and kᵀ. Nobody else reads what lies between.
    3. Constants that multiply q and k go into the scale.
    """
    product = graph.only_consumer(node.outputs[0]) if graph.is_op(node, "Softmax") else None
    if product is None or not graph.is_op(product, "MatMul") or product.graph is not node.graph:
        return None
    weights, v = product.inputs
    if weights is not node.outputs[0] or v is None or graph.constant(v) is not None:
        return None
    for scores, mask, below in masked(node):
        found = scaled_product(scores, below or node)
        if found is not None and is_of_rows(node, found.turn):
            hides = below if graph.is_op(below, "Where") else None
            inner = (*found.nodes, *([] if below is None else [below]), node, product)
            return Attention(node, product, inner, found.q, found.k, v, found.turn, scores, mask, hides, found.scale)
    return None


def masked(softmax: ir.Node) -> list[tuple[ir.Value, ir.Value | None, ir.Node | None]]:
    """What may be the scores that `softmax` reads, what is added to them, and the node that masks them."""
    value = softmax.inputs[0]
    below = graph.own_producer(value, softmax)
    if value is None:
        return []
    if below is not None and graph.is_op(below, "Add"):
        one, two = below.inputs
        return [] if one is two or one is None or two is None else [(one, two, below), (two, one, below)]
    if below is not None and graph.is_op(below, "Where"):
        return [(x, None, below) for x, low in (below.inputs[1:], below.inputs[:0:-1]) if x is not None and _hides(low)]
    return [(value, None, None)]


@dataclass(frozen=True)
class ScaledProduct:
    """scale · q · kᵀ, and the nodes that compute it for one reader alone."""

    q: ir.Value
    k: ir.Value
    turn: ir.Node | None
    scale: float
    nodes: tuple[ir.Node, ...]


def scaled_product(scores: ir.Value, reader: ir.Node) -> ScaledProduct | None:
    scale, nodes = 1.0, list[ir.Node]()
    node = graph.own_producer(scores, reader)
    while node is not None and (step := factor_of(node)) is not None:
        scale *= step[1]
        nodes.insert(0, node)
        node = graph.own_producer(step[0], node)
    if node is None or not graph.is_op(node, "MatMul"):
        return None
    q, k = node.inputs
    if q is None or k is None or graph.constant(q) is not None or graph.constant(k) is not None:
        return None
    (q, of_q), (k, of_k) = _stripped(q), _stripped(k)
    turn = k.producer()
    if turn is not None and graph.is_op(turn, "Transpose") and len(axes_of(turn)) > 1 and turn.inputs[0] is not None:
        k, before = _stripped(turn.inputs[0])
        of_k *= before
    else:
        turn = None
    scale *= of_q * of_k
    return ScaledProduct(q, k, turn, scale, (node, *nodes)) if math.isfinite(scale) else None


def axes_of(transpose: ir.Node) -> list[int]:
    """In which order it puts them; nothing where it does not say, and turns them all round."""
    found = transpose.attributes.get("perm")
    return [] if found is None else list(found.as_ints())


def _stripped(value: ir.Value) -> tuple[ir.Value, float]:
    """What is multiplied by single constants to make `value`, and their product."""
    scale = 1.0
    node = value.producer()
    while node is not None and (step := factor_of(node)) is not None:
        value, scale = step[0], scale * step[1]
        node = value.producer()
    return value, scale


def factor_of(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What a Mul or Div multiplies, and by which number."""
    if not graph.is_op(node, "Mul", "Div"):
        return None
    for index in (0, 1) if node.op_type == "Mul" else (0,):
        value, number = node.inputs[index], number_of(node.inputs[1 - index])
        if value is None or number is None or graph.constant(value) is not None:
            continue
        if node.op_type == "Div":
            return (value, 1.0 / number) if number else None
        return value, number
    return None


def number_of(value: ir.Value | None) -> float | None:
    """The only element of a constant that does not add dimensions to what it is combined with."""
    tensor = graph.constant(value)
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 1 or tensor.dtype is not ir.DataType.FLOAT:
        return None
    return float(np.asarray(tensor.numpy()).reshape(-1)[0])


def _hides(value: ir.Value | None) -> bool:
    number = number_of(value)
    return number is not None and number <= HIDDEN


def is_of_rows(softmax: ir.Node, turn: ir.Node | None) -> bool:
    """Whether it sums over the last axis alone; where the rank is not known, whether it may."""
    if "axis" not in softmax.attributes:
        assert isinstance(softmax.graph, ir.Graph)
        return softmax.graph.opset_imports.get("", 1) >= ONE_AXIS
    axis, shape = graph.attribute_int(softmax, "axis", -1), softmax.outputs[0].shape
    if axis == -1 or shape is not None:
        return axis == -1 or (shape is not None and axis == len(shape) - 1)
    return turn is not None and axis >= max(1, len(axes_of(turn)) - 1)  # q and the mask may have more dimensions than k


def with_attention(plan: Plan, model: ir.Model, recipe: Recipe, target: Target, types: Types) -> Plan:
    """`plan` with a choice for the Softmax of each attention, where products have kernels of their own, and of each
    that is not int8 among those that are."""
    has_kernels = any(choice.op != "Gather" for choice in plan.those(Method.PACKED))
    has_kernels |= any(choice.op in ("MatMul", "Gemm") for choice in plan.those(Method.STATIC))
    if not target.has_onnxq_ops or not has_kernels or graph.opset(model) < own_ops.FLOAT_OPSET:
        return plan
    made = []
    for node in graph.nodes(model):
        found = attention_at(node)
        if found is None or node.name in plan.choices or not _is_float32(found, types):
            continue
        if recipe.scheme_for(node.name or "", node.op_type) != KEEP:
            made.append(Choice(node.name or "", node.op_type, Method.FUSED))
    return plan.replacing(made)


def _is_float32(found: Attention, types: Types) -> bool:
    """Whether it is known to be, over the last axis, of operands that are known to be matrices."""
    made = types.of(found.softmax.outputs[0])
    ranks = [types.of(value).rank for value in (found.q, found.v, found.softmax.outputs[0])]
    is_of_rows = made.rank is not None and graph.attribute_int(found.softmax, "axis", -1) in (-1, made.rank - 1)
    return is_of_rows and made.dtype is ir.DataType.FLOAT and all(rank is not None and rank >= 2 for rank in ranks)

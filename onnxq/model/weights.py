"""The one walker that sees every weight, wherever it is, and knows how its operator uses it.

It runs on a prepared model (`passes/prepare.py`), where each weight is an initializer of the graph or subgraph that
reads it, or of one around it. A weight read by several nodes is found once for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph

#: Constants with fewer elements are parameters (biases, scales, axes), not weights worth storing in another format.
MIN_ELEMENTS = 256

#: Up to this size the fractions of numbers survive in float16 with two digits.
FRACTIONS_BELOW = 16.0
#: Scores that this is added to are hidden, as are those that a truth value times it is added to.
HIDING = -1000.0
#: Numbers in a row of a table of embeddings, at least.
LEAST_WIDTH = 32
#: Operators that read codes and scales of these, with their domains.
WITH_CODES = frozenset(
    [
        *((domain, op) for domain in ("", graph.MICROSOFT) for op in ("DequantizeLinear", "QuantizeLinear")),
        *((graph.MICROSOFT, op) for op in ("GatherBlockQuantized", "MatMulBnb4", "MatMulNBits", "QMoE")),
    ]
)


@dataclass(frozen=True)
class Role:
    """How a node uses the weight at its input `index`: `channel` is the axis of its outputs (or table rows),
    `contraction` the axis summed over, along which blocks of shared scales lie."""

    index: int
    channel: int
    contraction: int


@dataclass(frozen=True)
class Weight:
    """One place where a node reads a constant of floating-point numbers."""

    node: ir.Node
    role: Role
    value: ir.Value
    tensor: ir.TensorProtocol

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape.numpy())

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether every output is a sum over all inputs: two dimensions, or a kernel of no groups."""
        if self.node.op_type == "Conv":
            return graph.attribute_int(self.node, "group", 1) == 1
        return len(self.shape) == 2


def find_weights(model: ir.Model) -> Iterator[Weight]:
    """Every weight of at least `MIN_ELEMENTS` elements, in the order of execution."""
    for node in graph.nodes(model):
        yield from weights_of(node)


def weights_of(node: ir.Node, least: int = MIN_ELEMENTS) -> Iterator[Weight]:
    """The weights of at least so many elements, given ones of any size, that `node` reads in a role known here."""
    roles = _ROLES.get((node.domain, node.op_type))
    for role in roles(node) if roles else ():
        tensor = graph.constant(node.inputs[role.index]) if role.index < len(node.inputs) else None
        value = node.inputs[role.index] if tensor is not None else None
        if tensor is None or value is None or tensor.dtype not in graph.FLOATS:
            continue
        is_weight = tensor.size >= least or isinstance(tensor, GivenTensor)
        if is_weight and len(tensor.shape) > max(role.channel, role.contraction):
            yield Weight(node, role, value, tensor)


def why_no_weight(node: ir.Node) -> str:
    """Why a node whose operator is made for weights has none here; empty if it has some, or is for other things too.

    Products and lookups are: of two activations, of an activation.
    """
    roles = _ROLES.get((node.domain, node.op_type))
    if roles is None or has_weights(node):
        return ""
    values = [node.inputs[role.index] for role in roles(node) if role.index < len(node.inputs)]
    read = next((value for value in values if value is not None and graph.constant(value) is not None), None)
    if read is not None and read.const_value is not None and read.const_value.dtype in graph.FLOATS:
        return f"'{read.name}' has only {read.const_value.size} numbers"
    given = next((value for value in values if value is not None and value.is_graph_input()), None)
    if given is not None and node.op_type not in ("MatMul", "Gather"):
        return f"its weight '{given.name}' is an input"
    if any(graph.constant(graph.decoded(value)) is not None for value in values):
        return "it is in integers already, and stays as it is"
    if read is None and values and node.op_type not in ("MatMul", "Gather"):
        return "its weight is computed"
    return ""


def reads_constant(node: ir.Node, weights: Sequence[Weight]) -> bool:
    """Whether what is multiplied by the weights on the right is constant itself."""
    x = node.inputs[0] if node.inputs else None
    return graph.constant(x) is not None and all(weight.role.index for weight in weights)


def has_weights(node: ir.Node) -> bool:
    """Whether `node` reads any; not any more once a pass has given them another form."""
    return next(weights_of(node), None) is not None


def other_constants(model: ir.Model) -> Iterator[Weight]:
    """Large floating-point tables that no role covers: they are added, concatenated, sliced …; vectors do not count."""
    for node in graph.nodes(model):
        yield from other_constants_of(node)


def other_constants_of(node: ir.Node) -> Iterator[Weight]:
    """Those of one node. A row is what lies along the last axis, a channel what the longest of the others counts."""
    if (node.domain, node.op_type) in WITH_CODES:  # what is left are their scales
        return
    known = {weight.role.index for weight in weights_of(node)}
    for index, value in enumerate(node.inputs):
        tensor = graph.constant(value)
        if value is None or tensor is None or index in known or tensor.dtype not in graph.FLOATS:
            continue
        shape = tuple(tensor.shape.numpy())
        if tensor.size >= MIN_ELEMENTS and len(shape) > 1:
            rows = max(range(len(shape) - 1), key=lambda axis: shape[axis])
            yield Weight(node, Role(index, rows, len(shape) - 1), value, tensor)


def fits_half(tensor: ir.TensorProtocol) -> bool:
    """Whether float16 holds these numbers: none is too large, nor are all so small that digits are lost."""
    w = tensor.numpy()
    largest = float(max(w.max(), -w.min())) if w.size else 0.0
    if not np.isfinite(largest):  # what is NaN or infinite stays so, beside others
        largest = float(np.abs(w[np.isfinite(w)].astype(np.float64)).max(initial=0.0))
    half = np.finfo(np.float16)
    return largest == 0 or float(half.tiny) <= largest <= float(half.max)


def is_coarse_in(half: ir.DataType, table: Weight) -> bool:
    """Whether float16 or bfloat16 would round the larger numbers of a table by more than those can bear that count
    places or turns.

    Positions in pixels and angles are known to a fraction of one, however large they are. Whole numbers are exact, as
    far as the type has them. How low a number is that hides a score does not matter.
    """
    w = table.tensor.numpy().astype(np.float32)
    counting = w[np.isfinite(w) & (w > HIDING)]
    is_large = bool(np.max(np.abs(counting), initial=0.0) > FRACTIONS_BELOW)
    return is_large and not np.array_equal(counting, counting.astype(half.numpy()).astype(np.float32))


def are_vectors(table: Weight) -> bool:
    """Whether the rows of a table look learned or periodic, as embeddings of places are, and not like coordinates."""
    w = table.tensor.numpy().astype(np.float32)
    return table.shape[-1] >= LEAST_WIDTH and bool(np.isfinite(w).all()) and not np.array_equal(2 * w, np.rint(2 * w))


def are_waves(table: Weight) -> bool:
    """Whether the rows of a table turn evenly, as sines and cosines of places do: in each column the numbers before and
    behind add up to the same multiple of the one between them."""
    rows = table.tensor.numpy()[-16:] if table.shape[0] < 24 else table.tensor.numpy()[8:24]  # past rows for padding
    w = rows.astype(np.float64)
    if len(w) < 8 or w.ndim != 2 or not np.isfinite(w).all() or not w.any():
        return False
    here, beside = w[1:-1], w[:-2] + w[2:]
    factors = (here * beside).sum(axis=0) / np.maximum((here * here).sum(axis=0), np.finfo(np.float64).tiny)
    is_even = np.abs(beside - factors * here).max() <= 0.01 * np.abs(w).max()
    return bool(is_even and factors.min() < 2 * np.cos(0.1))


def _constant(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """What `node` reads there; models that are only looked at may have nodes that read too little."""
    return graph.constant(node.inputs[index]) if index < len(node.inputs) else None


def _conv(node: ir.Node) -> list[Role]:
    return [Role(1, channel=0, contraction=1)]


def _conv_transpose(node: ir.Node) -> list[Role]:
    return [Role(1, channel=1, contraction=0)]


def _matmul(node: ir.Node) -> list[Role]:
    roles = []
    for index in (1, 0):
        tensor = _constant(node, index)
        if tensor is not None and (rank := len(tensor.shape)) >= 2:
            rows, columns = rank - 2, rank - 1
            roles.append(Role(1, columns, rows) if index == 1 else Role(0, rows, columns))
    return roles


def _gemm(node: ir.Node) -> list[Role]:
    b = (0, 1) if graph.attribute_int(node, "transB", 0) else (1, 0)
    a = (1, 0) if graph.attribute_int(node, "transA", 0) else (0, 1)
    return [Role(1, *b), Role(0, *a)]


def _gather(node: ir.Node) -> list[Role]:
    table = _constant(node, 0)
    rank = 0 if table is None else len(table.shape)
    if rank < 2 or graph.attribute_int(node, "axis", 0) not in (0, -rank):
        return []
    return [Role(0, channel=0, contraction=rank - 1)]


def _recurrent(node: ir.Node) -> list[Role]:
    """[directions, N, K] each; nothing can be made of others, which no runtime takes."""
    constants = {index: graph.constant(value) for index, value in enumerate(node.inputs[:3])}
    return [
        Role(index, channel=1, contraction=2)
        for index in (1, 2)
        if (tensor := constants.get(index)) is None or len(tensor.shape) == 3
    ]


def _attention(node: ir.Node) -> list[Role]:
    return [Role(1, channel=1, contraction=0)]


def _experts(node: ir.Node) -> list[Role]:
    """[experts, N, K] each."""
    return [Role(index, channel=1, contraction=2) for index in (2, 4, 6)]


def _embed_layer_norm(node: ir.Node) -> list[Role]:
    return [Role(index, channel=0, contraction=1) for index in (2, 3, 4)]


_ROLES: dict[tuple[str, str], Callable[[ir.Node], list[Role]]] = {
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Gather"): _gather,
    ("", "LSTM"): _recurrent,
    ("", "GRU"): _recurrent,
    ("", "RNN"): _recurrent,
    (graph.MICROSOFT, "Attention"): _attention,
    (graph.MICROSOFT, "MoE"): _experts,
    (graph.MICROSOFT, "EmbedLayerNormalization"): _embed_layer_norm,
}

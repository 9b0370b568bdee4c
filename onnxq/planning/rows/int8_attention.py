"""Attention whose q, k and v are codes, which a region computes in one step: as it is in the model, and once its
operands and weights are codes.

What a token weighs is rounded relative to the largest weight of its row: 255 steps for a row that looks at one token,
and for one that looks at all of them. So the weights are divided by the largest one before they are rounded, and what v
is multiplied to by that again (`weigh_in_codes` in `passes/quantize/_matmul.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Dim, Types, is_named
from onnxq.planning.attention import is_of_rows, masked, scaled_product
from onnxq.planning.rows.operands import Operand, key_of, numbers_of, operand_of, turns_heads

#: Numbers of a head, and tokens, whose products fit 32 bits.
MOST = 1 << 15
#: Of the codes of weights, the largest of which is 1.
STEP = float(np.float32(1) / np.float32(255))


@dataclass(frozen=True)
class Int8Attention:
    """An attention with its operands.

    Attributes:
        softmax: the node that it is called after.
        turned: whether k is [..., D, T].
        mask: what is added to the scores, or None.
        hides: a Where that puts a low number in the place of some.
        weights: those nodes that make codes of the Softmax's result, once they do.
        nodes: all, in order of the parts; the last one makes the result, with heads side by side where it `merges`.
    """

    softmax: ir.Node
    q: Operand
    k: Operand
    v: Operand
    turned: bool
    scores: ir.Value
    mask: ir.Value | None
    hides: ir.Node | None
    scale: float
    product: ir.Node
    weights: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]
    merges: bool

    @property
    def result(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        return self.q, self.k, self.v

    @property
    def reads(self) -> list[tuple[ir.Node, int]]:
        return list(dict.fromkeys(each.reader for each in self.operands))

    @property
    def heads(self) -> int:
        return max(each.heads for each in self.operands)

    @property
    def merged_rows(self) -> tuple[int, int]:
        """The first two sizes that the Reshape behind it asks for."""
        sizes = numbers_of(self.nodes[-1].inputs[1]) or [0, 0]
        return (sizes[0], sizes[1])

    @property
    def is_closed(self) -> bool:
        """Whether nobody else reads what lies inside."""
        return graph.are_closed(self.nodes, self.nodes[-1])

    @property
    def is_of_one_size(self) -> bool:
        """Whether all that is known of heads goes together."""
        heads = {each.heads for each in self.operands if each.heads}
        sizes = {each.size for each in (self.q, self.k) if each.size}
        return len(heads) <= 1 and len(sizes) <= 1 and max([0, *heads, *sizes, self.v.size]) < MOST


def int8_attention_at(node: ir.Node | None) -> Int8Attention | None:
    """The attention whose weights the Softmax `node` makes, unless anybody else reads what lies inside.

    1. Behind it the weights are multiplied by v, as they are or rounded as `weigh_in_codes` writes it.
    2. Before it what `attention_at` knows.
    3. Heads that a Reshape to constant sizes and a Transpose put before rows are read where they lie, also those of a
       part of what one product makes, by Split, Slice or Gather; so are those that are put back behind v.
    """
    weighed = _weighed(node) if graph.is_op(node, "Softmax") and node is not None else None
    if weighed is None or node is None:
        return None
    weights, product, last = weighed
    for scores, mask, below in masked(node):
        found = scaled_product(scores, below or node)
        v = operand_of(product, 1, strips=False)
        if found is None or v is None or not is_of_rows(node, found.turn):
            continue
        q, (k, turned) = operand_of(found.nodes[0], 0), key_of(found.nodes[0], found.turn)
        if q is None or k is None:
            continue
        behind = _merging(last, v)
        inner = [*q.nodes, *k.nodes, *v.nodes, *found.nodes, *([] if below is None else [below]), node]
        nodes = tuple(dict.fromkeys([*inner, *weights, product, last, *behind]))
        hides = below if graph.is_op(below, "Where") else None
        made = Int8Attention(
            node, q, k, v, turned, scores, mask, hides, found.scale, product, weights, nodes, bool(behind)
        )
        return made if made.is_closed and made.is_of_one_size else None
    return None


def fits(found: Int8Attention, types: Types) -> bool:
    """Whether all of it is known to be float32 of such dimensions as a step takes."""
    values = [*(each.root for each in found.operands), *([] if found.mask is None else [found.mask])]
    if any(types.of(value).dtype is not ir.DataType.FLOAT for value in values):
        return False
    ranks = [4 if each.heads else types.of(each.root).rank for each in found.operands]
    rank = ranks[0]
    if ranks.count(rank) != 3 or rank not in (2, 3, 4) or (found.merges and rank != 4):
        return False
    if found.mask is not None and not 2 <= (types.of(found.mask).rank or 0) <= rank:
        return False
    shape = types.of(found.q.root).shape
    merged = found.merged_rows if found.merges and found.q.heads else (0, 0)
    keeps = all(_keeps_rows(each, types) for each in found.operands) and _are_rows(merged, shape)
    return keeps and _has_matrices_of_q(found, types)


def _has_matrices_of_q(found: Int8Attention, types: Types) -> bool:
    """Whether q has a matrix for each one of k, v and the mask, and a row for each one of the mask; a step does not
    repeat its own."""
    q, *others = (_leading(each, types) for each in found.operands)
    shape = types.of(found.q.root).shape or ()
    rows = shape[1:2] if found.q.heads else shape[-2:-1]
    values = [found.mask, *([] if found.hides is None else [found.hides.inputs[0]])]
    masks = [types.of(value).shape or () for value in values if value is not None]
    pairs = [pair for other in others for pair in zip(other[::-1], q[::-1], strict=False)]
    pairs += [pair for mask in masks for pair in zip(mask[-2::-1], (*rows, *q[::-1]), strict=False)]
    return all(_is_repeated(*each) for each in pairs)


def _leading(operand: Operand, types: Types) -> tuple[Dim, ...]:
    """How many matrices there are, along each axis."""
    shape = types.of(operand.root).shape or ()
    return (*shape[:1], operand.heads) if operand.heads else shape[:-2]


def _is_repeated(dim: Dim, of_q: Dim) -> bool:
    """Whether the other operand has one matrix for all along an axis, or as many as q, as far as is known."""
    if of_q is None or dim in (1, of_q):
        return True
    if dim is None:
        return of_q != 1
    return of_q > 1 if isinstance(of_q, int) else not (is_named(of_q) and (isinstance(dim, int) or is_named(dim)))


def _keeps_rows(operand: Operand, types: Types) -> bool:
    """Whether heads are known to be split off the rows of a stack of matrices, and to be there."""
    if not operand.heads:
        return True
    shape = types.of(operand.root).shape
    if shape is None or len(shape) != 3:
        return False
    width, needed = shape[2], operand.first + operand.heads * operand.size
    return _are_rows(operand.rows, shape) and (not isinstance(width, int) or needed <= width)


def _are_rows(asked: tuple[int, int], shape: tuple[Dim, ...] | None) -> bool:
    """Whether a Reshape that asks for these sizes leaves the first two as they are."""
    return asked == (0, 0) or (
        shape is not None and all(size in (0, known) for size, known in zip(asked, shape[:2], strict=True))
    )


def _weighed(softmax: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Node, ir.Node] | None:
    """What rounds the weights, the product by v, and the node that makes the result of it."""
    weights = softmax.outputs[0]
    readers = [use.node for use in weights.uses()]
    if weights.is_graph_output() or not readers:
        return None
    if len(readers) == 1:
        (by,) = readers
        is_plain = graph.is_op(by, "MatMul") and by.inputs[0] is weights and by.graph is softmax.graph
        return ((), by, by) if is_plain else None
    largest = next((node for node in readers if graph.is_op(node, "ReduceMax")), None)
    divided = next((node for node in readers if graph.is_op(node, "Div")), None)
    if largest is None or divided is None or len(readers) != 2 or divided.inputs[1] is not largest.outputs[0]:
        return None
    quantize = graph.only_consumer(divided.outputs[0])
    decoded = None if quantize is None else graph.only_consumer(quantize.outputs[0])
    product = None if decoded is None else graph.only_consumer(decoded.outputs[0])
    last = None if product is None else graph.only_consumer(product.outputs[0])
    if quantize is None or decoded is None or product is None or last is None:
        return None
    is_spelled = (
        _rounds_weights(quantize)
        and graph.is_op(decoded, "DequantizeLinear")
        and list(decoded.inputs[1:]) == list(quantize.inputs[1:])
        and graph.is_op(product, "MatMul")
        and product.inputs[0] is decoded.outputs[0]
        and graph.is_op(last, "Mul")
        and {*last.inputs} == {product.outputs[0], largest.outputs[0]}
        and _is_of_last_axis(largest)
    )
    return ((largest, divided, quantize, decoded), product, last) if is_spelled else None


def _rounds_weights(node: ir.Node) -> bool:
    tensors = [graph.constant(value) for value in node.inputs[1:3]]
    if not graph.is_op(node, "QuantizeLinear") or len(tensors) != 2 or any(tensor is None for tensor in tensors):
        return False
    scale, zero = (tensor.numpy() for tensor in tensors if tensor is not None)
    return (
        zero.dtype == np.uint8
        and scale.dtype == np.float32
        and scale.size == 1 == zero.size
        and (float(scale.reshape(())) == STEP and int(zero.reshape(())) == 0)
    )


def _is_of_last_axis(node: ir.Node) -> bool:
    given = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = list(node.attributes.get_ints("axes", [])) if given is None else given.numpy().tolist()
    return axes == [-1] and graph.attribute_int(node, "keepdims", 1) == 1


def _merging(last: ir.Node, v: Operand) -> tuple[ir.Node, ...]:
    """The Transpose and the Reshape that put heads side by side again, if they are there."""
    turn = graph.only_consumer(last.outputs[0])
    if turn is None or not turns_heads(turn) or turn.graph is not last.graph:
        return ()
    merge = graph.only_consumer(turn.outputs[0])
    if merge is None or not graph.is_op(merge, "Reshape") or graph.attribute_int(merge, "allowzero", 0):
        return ()
    sizes = numbers_of(merge.inputs[1])
    if sizes is None or len(sizes) != 3 or min(sizes[:2]) < 0 or merge.graph is not turn.graph:
        return ()
    return (turn, merge) if not v.heads or sizes[2] in (-1, v.heads * v.size) else ()


def int8_attention_of(value: ir.Value | None) -> Int8Attention | None:
    """The attention that makes `value`."""
    node = graph.producer(value)
    for op in ("Reshape", "Transpose", "Mul"):
        if node is not None and graph.is_op(node, op) and node.inputs[0] is not None:
            inner = [each.producer() for each in node.inputs if each is not None]
            node = next((each for each in inner if graph.is_op(each, "Transpose", "Mul", "MatMul")), None)
    if node is None or not graph.is_op(node, "MatMul"):
        return None
    for op in ("DequantizeLinear", "QuantizeLinear", "Div", "Softmax"):
        before = None if node is None or node.inputs[0] is None else node.inputs[0].producer()
        node = before if graph.is_op(before, op) else node
    found = int8_attention_at(node) if graph.is_op(node, "Softmax") else None
    return found if found is not None and found.result is value else None

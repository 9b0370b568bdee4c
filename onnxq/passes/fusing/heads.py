"""Heads that a Reshape splits and a Transpose moves to the front, or back: attention can read them where they lie.

[B, T, heads · D]  Reshape  [B, T, heads, D]  Transpose  [B, heads, T, D]
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.passes.sizes import Size, sizes_of
from onnxq.planning.rows.operands import turns_heads

#: Operators that leave all dimensions of their first input, or of both, but the last one as they are.
_ROW_BY_ROW = ("Identity", "Cast", "Relu", "Gelu", "LayerNormalization", "RMSNormalization")
#: By a constant matrix; and with a constant vector.
_PRODUCTS = ("MatMul", "DenseMatMul", "MatMulNBits")
_OF_TWO = ("Add", "Mul")
#: What is done to heads before they meet. Were there other rows behind it, no valid model could ask for those before.
_IN_PLACE = ("Add", "Sub", "Mul", "Div", "Neg", "Concat", "Slice", "Split", "Cast", "Identity")


@dataclass(frozen=True)
class Joined:
    """`x` of [B, T, width], of which all heads were made."""

    x: ir.Value
    heads: int
    width: int


def joined_at(moved: ir.Value, types: Types) -> Joined | None:
    """What [B, heads, T, D] is made of, by one Reshape and one Transpose."""
    turn = moved.producer()
    if turn is None or not turns_heads(turn):
        return None
    return split_at(turn.inputs[0], types)


def split_at(value: ir.Value | None, types: Types) -> Joined | None:
    """What [B, T, heads, D] is made of, by one Reshape."""
    node = graph.producer(value)
    if node is None or not graph.is_op(node, "Reshape") or graph.attribute_int(node, "allowzero", 0):
        return None
    x, sizes = node.inputs[0], sizes_of(node.inputs[1], types)
    shape = None if x is None else types.of(x).shape
    if x is None or sizes is None or len(sizes) != 4 or shape is None or len(shape) != 3:
        return None
    numbers, (heads, last) = shape[2], sizes[2:]
    if not isinstance(numbers, int) or not isinstance(heads, int) or not isinstance(last, int):
        return None
    if heads == -1 and last > 0 and numbers % last == 0:
        heads = numbers // last
    elif last == -1 and heads > 0 and numbers % heads == 0:
        last = numbers // heads
    is_whole = heads > 1 and last > 0 and heads * last == numbers and list(sizes).count(-1) <= 1
    same = [is_whole and _same(sizes[axis], x, axis, types) for axis in (0, 1)]
    # One size that is left open is what the others leave.
    return Joined(x, heads, numbers) if all(same) or (is_whole and any(same) and -1 in sizes[:2]) else None


def split_before(value: ir.Value, types: Types) -> Joined | None:
    """What `value` is made of, element by element, behind a Reshape and a Transpose that split heads: rotated, say."""
    left, seen = [value], set[ir.Value]()
    while left:
        at = left.pop()
        if (found := joined_at(at, types)) is not None:
            return found
        node = at.producer()
        seen.add(at)
        if node is not None and node.domain == "" and node.op_type in _IN_PLACE:
            left += [each for each in node.inputs if each is not None and each not in seen]
    return None


def merged_behind(y: ir.Value, width: int | None, rows: ir.Value, types: Types) -> tuple[ir.Node, ir.Node] | None:
    """The Transpose and the Reshape that make [B, T, heads · E] of `y`; `rows` is [B, T, …].

    Args:
        width: heads · E, where it is known.
    """
    turn = graph.only_consumer(y)
    if turn is None or not turns_heads(turn) or turn.graph is not _owner(y):
        return None
    merge = graph.only_consumer(turn.outputs[0])
    if merge is None or not graph.is_op(merge, "Reshape") or graph.attribute_int(merge, "allowzero", 0):
        return None
    sizes = sizes_of(merge.inputs[1], types)
    if sizes is None or len(sizes) != 3 or merge.graph is not turn.graph or not isinstance(sizes[2], int):
        return None
    is_whole = sizes[2] in (-1, width)
    same = [is_whole and _same(sizes[axis], rows, axis, types) for axis in (0, 1)]
    is_open = is_whole and any(same) and -1 in sizes[:2] and sizes.count(-1) == 1
    return (turn, merge) if all(same) or is_open else None


def _owner(value: ir.Value) -> ir.Graph | ir.Function | None:
    node = value.producer()
    return None if node is None else node.graph


def _same(size: Size, x: ir.Value, axis: int, types: Types) -> bool:
    """Whether a Reshape of `x` that asks for this size leaves that axis as it is."""
    shape = types.of(x).shape
    known = shape[axis] if shape is not None and axis < len(shape) else None
    if isinstance(size, int):
        return size == 0 or (size > 0 and size == known)
    value, of = size
    other = types.of(value).shape
    if known is not None and other is not None and of < len(other) and other[of] == known:
        return True
    return of == axis and value in _with_its_rows(x)


def _with_its_rows(x: ir.Value) -> set[ir.Value]:
    """Values that have the dimensions of `x`, but for the last one."""
    found, left = set[ir.Value](), [x]
    while left:
        value = left.pop()
        found.add(value)
        left += [source for source in _sources(value.producer()) if source not in found]
    return found


def _sources(node: ir.Node | None) -> list[ir.Value]:
    """Those inputs of a node whose rows become the rows of its output."""
    if node is None or node.op_type not in (*_PRODUCTS, *_OF_TWO, *_ROW_BY_ROW):
        return []
    first, second = (*node.inputs, None)[:2]
    if node.op_type in _PRODUCTS:
        return [first] if first is not None and (node.op_type != "MatMul" or _rank(second) == 2) else []
    if node.op_type in _OF_TWO:
        pairs = [(first, second), (second, first)]
        return [one for one, two in pairs if one is not None and _rank(one) is None and (_rank(two) or 9) <= 1]
    return [] if first is None else [first]


def _rank(value: ir.Value | None) -> int | None:
    """Of a constant."""
    tensor = graph.constant(value)
    return None if tensor is None else len(tensor.shape)

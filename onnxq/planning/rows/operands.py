"""What an attention reads: where q, k and v come from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.absorbed import outputs_of
from onnxq.planning.attention import axes_of, factor_of

#: The order of axes that puts heads before rows, and back.
HEADS_FIRST = [0, 2, 1, 3]


@dataclass(frozen=True)
class Operand:
    """Where q, k or v comes from.

    Attributes:
        root: what is codes.
        reader: the node that reads it, and the number of its input.
        nodes: what makes the operand of it, in order.
        heads, size: that lie side by side in its rows, and numbers of one; 0 where each head has rows of its own.
        first: where they begin.
        rows: the first two sizes that a Reshape asks for.
    """

    root: ir.Value
    reader: tuple[ir.Node, int]
    nodes: tuple[ir.Node, ...] = ()
    heads: int = 0
    size: int = 0
    first: int = 0
    rows: tuple[int, int] = (0, 0)


def turns_heads(node: ir.Node) -> bool:
    """Whether it puts heads before rows, or back."""
    return graph.is_op(node, "Transpose") and axes_of(node) == HEADS_FIRST


def operand_of(reader: ir.Node, index: int, strips: bool = True) -> Operand | None:
    """What a product reads.

    Args:
        strips: whether constants that it is multiplied with are part of the attention.
    """
    nodes: list[ir.Node] = []
    value = reader.inputs[index]
    while strips and value is not None:
        made = value.producer()
        step = None if made is None or graph.only_consumer(value) is not reader else factor_of(made)
        if made is None or step is None:
            break
        nodes.insert(0, made)
        reader, value = made, step[0]
        index = list(made.inputs).index(value)
    if value is None or graph.constant(value) is not None:
        return None
    return _with_heads(value, (reader, index), nodes)


def _with_heads(value: ir.Value, reader: tuple[ir.Node, int], nodes: list[ir.Node]) -> Operand:
    plain = Operand(value, reader, tuple(nodes))
    turn = value.producer()
    if turn is None or not turns_heads(turn):
        return plain
    split = graph.producer(turn.inputs[0])
    return _of_heads(split, (turn, *nodes)) or plain


def _of_heads(split: ir.Node | None, behind: tuple[ir.Node, ...]) -> Operand | None:
    """Behind a Reshape to [.., .., heads, size] of rows, or of a part of each."""
    if split is None or not graph.is_op(split, "Reshape") or graph.attribute_int(split, "allowzero", 0):
        return None
    sizes, rows = numbers_of(split.inputs[1]), split.inputs[0]
    if rows is None or sizes is None or len(sizes) != 4 or min(sizes[:2]) < 0:
        return None
    heads, size = sizes[2:]
    if -1 in (heads, size):
        width = _width_of(rows)
        known = max(heads, size)
        if width is None or known < 1 or width % known:
            return None
        heads, size = (width // known, known) if heads == -1 else (known, width // known)
    if heads < 1 or size < 1:
        return None
    found = Operand(rows, (split, 0), (split, *behind), heads, size, 0, (sizes[0], sizes[1]))
    part = rows.producer()
    if part is None or not graph.is_op(part, "Split") or part.inputs[0] is None:
        return found
    parts = numbers_of(part.inputs[1]) if len(part.inputs) > 1 else list(part.attributes.get_ints("split", []))
    width = _width_of(part.inputs[0])
    if not parts and width is not None and width % len(part.outputs) == 0:
        parts = [width // len(part.outputs)] * len(part.outputs)
    number = list(part.outputs).index(rows)
    if graph.attribute_int(part, "axis", 0) not in (-1, 2) or not parts or parts[number] != heads * size:
        return found
    return Operand(part.inputs[0], (part, 0), (part, *found.nodes), heads, size, sum(parts[:number]), found.rows)


def key_of(product: ir.Node, turn: ir.Node | None) -> tuple[Operand | None, bool]:
    """k, and whether it is [.., D, T]."""
    found = operand_of(product, 1)
    if turn is None or found is None or found.heads or found.root is not turn.outputs[0]:
        return found, True
    axes = axes_of(turn)
    if axes[:-2] == list(range(len(axes) - 2)) and axes[-2:] == [len(axes) - 1, len(axes) - 2]:
        inner = operand_of(turn, 0)
        if inner is None or any(graph.only_consumer(node.outputs[0]) is None for node in (turn,)):
            return found, True
        return _behind(inner, (turn, *found.nodes)), False
    if axes == [0, 2, 3, 1]:
        before = operand_of(turn, 0)
        split = None if before is None else before.root.producer()
        heads = None if before is None else _of_heads(split, (*before.nodes, turn, *found.nodes))
        return (found, True) if heads is None else (heads, False)
    return found, True


def _behind(operand: Operand, nodes: tuple[ir.Node, ...]) -> Operand:
    return dataclasses.replace(operand, nodes=(*operand.nodes, *nodes))


def numbers_of(value: ir.Value | None) -> list[int] | None:
    tensor = graph.constant(value)
    return None if tensor is None or tensor.size > 8 else [int(each) for each in tensor.numpy().reshape(-1)]


def _width_of(rows: ir.Value) -> int | None:
    """How many numbers a product makes of each row; None where no product makes them."""
    node: ir.Node | None = rows.producer()
    while node is not None and graph.is_op(node, "DequantizeLinear", "QuantizeLinear", "Add"):
        read = [value for value in node.inputs if value is not None and graph.constant(value) is None]
        read = [value for value in read if not _is_stored(value)]
        node = read[0].producer() if len(read) == 1 else None
    return None if node is None else outputs_of(node)


def _is_stored(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and graph.is_op(maker, "DequantizeLinear") and graph.constant(maker.inputs[0]) is not None

"""What the integers of an input are used for: which tables they look up, and what they are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxq import own_ops
from onnxq.made_up.dims import LARGEST
from onnxq.model import graph

_SHAPES_ONLY = ("Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose")
#: Operators that take a part of their first input.
_PARTS = ("Slice", "Gather", "Split")
#: Operators that make a table of its codes, with the dimensions of their first input.
_UNPACKS = ("DequantizeLinear", "Cast", "Sub", "Mul", "Add", "Identity")


@dataclass(frozen=True)
class Uses:
    """What is known of an input from what reads it.

    Attributes:
        rows: of the smallest table that is looked up with it; None: with none.
        columns: of the table that is looked up with each of its columns; empty where they do not have one each.
        compared: whole numbers that it is compared with.
        sought: those of them whose place the model looks for, as of the word that ends a text.
    """

    rows: int | None = None
    columns: tuple[int, ...] = ()
    compared: tuple[int, ...] = ()
    sought: tuple[int, ...] = ()


def uses_of(value: ir.Value) -> Uses:
    """Seen through operators that only reshape a value or take a part of it."""
    rows: dict[int | None, list[int]] = {}
    compared: dict[int, None] = {}
    sought: dict[int, None] = {}
    pending: list[tuple[ir.Value, int | None]] = [(value, None)]
    seen = set()
    while pending:
        each, column = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for use in each.uses():
            node, index = use.node, use.idx
            rows.setdefault(column, []).extend(_rows(node, index))
            compared |= dict.fromkeys(_compared(node, index))
            sought |= dict.fromkeys(_compared(node, index) if _finds_a_place(node) else ())
            if index == 0 and graph.is_op(node, *_SHAPES_ONLY):
                pending += [(out, column) for out in node.outputs]
            elif index == 0 and graph.is_op(node, *_PARTS):
                found = _columns(node) if column is None and each.shape == value.shape else [None] * len(node.outputs)
                pending += [(out, column if n is None else n) for out, n in zip(node.outputs, found, strict=True)]
    smallest = {column: min(found) for column, found in rows.items() if found}
    width = None if value.shape is None or len(value.shape) < 2 else value.shape[-1]
    as_many = isinstance(width, int) and width == len(smallest)  # before a set of any size is made
    own = as_many and isinstance(width, int) and set(smallest) == set(range(width))
    columns = tuple(smallest[column] for column in sorted(smallest, key=int)) if own else ()  # type: ignore[arg-type]
    return Uses(min(smallest.values(), default=None), columns, tuple(compared), tuple(sought))


def _columns(node: ir.Node) -> list[int | None]:
    """For each output of an operator that takes parts, the one column that it is; None where it is something else."""
    data = node.inputs[0]
    rank = 0 if data is None or data.shape is None else len(data.shape)
    nothing: list[int | None] = [None] * len(node.outputs)
    if node.op_type == "Slice":
        starts, ends, axes, steps = (graph.integers(node, index) for index in range(1, 5))
        if not (starts and ends and axes) or len(starts) > 1 or steps not in (None, [1]):
            return nothing
        is_last = axes[0] % max(1, rank) == rank - 1
        return [starts[0]] if is_last and ends[0] == starts[0] + 1 else nothing
    if graph.attribute_int(node, "axis", 0) % max(1, rank) != rank - 1:
        return nothing
    if node.op_type == "Gather":
        indices = graph.integers(node, 1)
        return nothing if indices is None or len(indices) != 1 else [indices[0]]
    width = data.shape[-1] if data is not None and data.shape is not None and rank else None
    return [*range(len(node.outputs))] if width == len(node.outputs) else nothing


def _rows(node: ir.Node, index: int) -> list[int]:
    found = None
    if graph.is_op(node, "Gather") and index == 1:
        found = _size(node.inputs[0], graph.attribute_int(node, "axis", 0))
    elif graph.is_op(node, own_ops.GATHER, domain=own_ops.DOMAIN) and index == 3:
        found = graph.attribute_int(node, "N", 1)
    elif graph.is_op(node, "GatherBlockQuantized", domain=graph.MICROSOFT) and index == 1:
        found = _size(node.inputs[0], graph.attribute_int(node, "gather_axis", 0))
    elif graph.is_op(node, "OneHot") and index == 0:
        found = next(iter(graph.integers(node, 1) or ()), None)
    elif graph.is_op(node, "EmbedLayerNormalization", domain=graph.MICROSOFT) and len(node.inputs) > 2:
        found = _size(node.inputs[2], 0) if index == 0 else 2
    return [] if found is None else [found]


def _size(table: ir.Value | None, axis: int) -> int | None:
    """Of one dimension of a constant, or of one that quantizers left behind what unpacks it; None: it is not known."""
    while table is not None:
        tensor, node = graph.constant(table), table.producer()
        shape = tensor.shape if tensor is not None else table.shape
        if shape is not None and len(shape) and isinstance(size := shape[axis % len(shape)], int):
            return size
        if node is None or not (
            graph.is_op(node, "Reshape", "Transpose", *_UNPACKS)
            or graph.is_op(node, "DequantizeLinear", domain=graph.MICROSOFT)
        ):
            return None
        if node.op_type == "Reshape":
            sizes = graph.integers(node, 1) or []
            return sizes[axis] if -len(sizes) <= axis < len(sizes) and sizes[axis] > 0 else None
        if node.op_type == "Transpose":
            order = node.attributes["perm"].as_ints() if "perm" in node.attributes else ()
            if not order:
                return None
            axis = order[axis % len(order)]
        computed = [each for each in node.inputs if each is not None and graph.constant(each) is None]
        table = computed[0] if computed and node.op_type in ("Sub", "Mul", "Add") else node.inputs[0]  # not the scale
    return None


#: Of constants that no number is compared with.
_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


def _compared(node: ir.Node, index: int) -> Iterator[int]:
    if graph.is_op(node, "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        other = graph.constant(node.inputs[1 - index])
        if other is None or other.dtype in _NO_NUMBERS:
            return
        if other.size != 1:
            return
        number = float(other.numpy().reshape(()))
        if number % 1 == 0 and abs(number) < LARGEST:  # what an input of integers can hold, and one more and less
            yield int(other.numpy().reshape(()))


def _finds_a_place(node: ir.Node) -> bool:
    """Whether what it says of each place is only asked where it is true first."""
    if not graph.is_op(node, "Equal"):
        return False
    value = node.outputs[0]
    readers = [use.node for use in value.uses()]
    while len(readers) == 1 and graph.is_op(readers[0], "Cast"):
        readers = [use.node for use in readers[0].outputs[0].uses()]
    return any(graph.is_op(reader, "ArgMax") for reader in readers)

"""Queries, keys and values that one product makes are told apart before heads are, in tensors of four dimensions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.dimensions import sizes_of
from onnxq.model.dims.known import Dims
from onnxq.model.graph import Names

#: The axis of [images, rows, parts, heads, numbers] that tells parts.
_PARTS = 2
#: From here on a Split reads the sizes of parts.
SPLIT_BY_INPUT = 13


class UnpackHeads(ir.passes.InPlacePass):
    """Reshape to [N, rows, parts, heads, numbers], Transpose, and one part each by Split, Slice or Gather, as most
    vision transformers have it, becomes Split of the columns, and of each part Reshape and Transpose.

    1. The shape is constant, its first two sizes are those of x, and the others divide the columns of x.
    2. All that reads the Reshape, or the Transpose behind it, takes one part and leaves no dimension for it.

    Planners and regions know attention of four dimensions; nothing is computed otherwise. Older models stay, as their
    Split is another.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        is_new = graph.opset(model) >= SPLIT_BY_INPUT
        found = [node for node in graph.nodes(model) if is_new and _shape(node) is not None]
        sizes, names = sizes_of(model) if found else None, Names(model)
        made = [_unpacked(node, sizes.of(node.inputs[0]), names) for node in found if sizes is not None]
        return ir.passes.PassResult(model, modified=any(made))


def _shape(node: ir.Node) -> list[int] | None:
    """What a Reshape asks for, if that is five constant sizes."""
    asked = graph.integers(node, 1) if graph.is_op(node, "Reshape") else None
    return asked if asked is not None and len(asked) == 5 else None


def _unpacked(node: ir.Node, dims: Dims | None, names: Names) -> bool:
    asked, x = _shape(node), node.inputs[0]
    if asked is None or x is None or dims is None or not _keeps_rows(node, asked, dims):
        return False
    parts, heads, numbers = asked[_PARTS:]
    last, perm = node, [0, 1, 2, 3, 4]
    turn = graph.only_consumer(node.outputs[0])
    if turn is not None and graph.is_op(turn, "Transpose"):
        last, perm = turn, list(turn.attributes.get_ints("perm", []))
        if sorted(perm) != [0, 1, 2, 3, 4]:
            return False
    taken = _parts(last, perm.index(_PARTS), parts)
    if taken is None or last.graph is not node.graph or not isinstance(node.graph, ir.Graph):
        return False
    columns = graph.add_constant(
        node.graph, names.fresh(f"{node.name}_columns"), ir.tensor(np.full(parts, heads * numbers, np.int64))
    )
    split = ir.node(
        "Split",
        [x, columns],
        attributes={"axis": len(dims) - 1},
        num_outputs=parts,
        name=names.fresh(f"{node.name}_parts"),
    )
    for i, output in enumerate(split.outputs):
        output.name = names.fresh(f"{node.name}_part_{i}")
    last.append(split)
    shape = graph.add_constant(
        node.graph, names.fresh(f"{node.name}_of_part"), ir.tensor(np.array([0, 0, heads, numbers], np.int64))
    )
    order = [axis - (axis > _PARTS) for axis in perm if axis != _PARTS]
    for end, part in taken:
        made = graph.add_node(end, "Reshape", [split.outputs[part], shape], names.fresh(f"{end.name}_heads"), "")
        if order != [0, 1, 2, 3]:
            made.name = names.fresh(f"{end.outputs[0].name}_rows")
            made = graph.add_node(end, "Transpose", [made], names.fresh(f"{end.name}_turn"), "", {"perm": order})
        graph.replace_value(end.outputs[0], made)
    return True


def _keeps_rows(node: ir.Node, asked: list[int], dims: Dims) -> bool:
    """Whether the first two sizes stay, and the last one is cut into three."""
    keeps = not graph.attribute_int(node, "allowzero", 0)
    if len(dims) != 3 or not isinstance(dims[2], int) or any(size < 1 for size in asked[_PARTS:]):
        return False
    stays = [size == dim or (size == 0 and keeps) for size, dim in zip(asked, dims[:2], strict=False)]
    is_left = [size == -1 for size in asked[:2]]
    rest = all(one or other for one, other in zip(stays, is_left, strict=True)) and sum(is_left) <= 1
    return rest and asked[2] > 1 and int(np.prod(asked[_PARTS:])) == dims[2]


def _parts(node: ir.Node, axis: int, count: int) -> list[tuple[ir.Node, int]] | None:
    """The nodes whose outputs are parts of the output of `node`, without a dimension for them, and which."""
    found: list[tuple[ir.Node, int]] = []
    if node.outputs[0].is_graph_output():
        return None
    for use in node.outputs[0].uses():
        own = _taken(use.node, axis, count) if use.idx == 0 and use.node.graph is node.graph else None
        if own is None:
            return None
        found += own
    return found


def _taken(node: ir.Node, axis: int, count: int) -> list[tuple[ir.Node, int]] | None:
    """The same for one reader: a Gather, or a Split or Slice with a Squeeze behind each output."""
    if graph.is_op(node, "Gather") and graph.attribute_int(node, "axis", 0) in (axis, axis - 5):
        index = graph.constant(node.inputs[1])
        number = None if index is None or len(index.shape) else int(index.numpy())
        return [(node, number % count)] if number is not None and -count <= number < count else None
    if graph.is_op(node, "Split") and graph.attribute_int(node, "axis", 0) in (axis, axis - 5):
        sizes = graph.integers(node, 1)
        is_even = len(node.outputs) == count and (sizes in (None, [1] * count))
        ends = [_squeeze(output, axis) for output in node.outputs] if is_even else []
        known = [(end, part) for part, end in enumerate(ends) if end is not None]
        return known if known and len(known) == count else None
    if graph.is_op(node, "Slice") and graph.integers(node, 3) in ([axis], [axis - 5]):
        start, end, step = (graph.integers(node, i) for i in (1, 2, 4))
        end_node = _squeeze(node.outputs[0], axis)
        if start is None or end is None or step not in (None, [1]) or end_node is None:
            return None
        places = range(count)[start[0] : end[0]]
        return [(end_node, places[0])] if len(places) == 1 else None
    return None


def _squeeze(value: ir.Value, axis: int) -> ir.Node | None:
    """The Squeeze of this axis alone, which nobody else reads the value beside."""
    found = graph.only_consumer(value)
    is_it = found is not None and graph.is_op(found, "Squeeze") and found.graph is not None
    return found if is_it and found is not None and graph.integers(found, 1) in ([axis], [axis - 5]) else None

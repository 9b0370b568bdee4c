"""Matrices that are turned in three dimensions, images and heads as one, are turned where they lie."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.dimensions import sizes_of
from onnxq.model.dims.known import Dims, Sizes
from onnxq.model.graph import Names


class PlainTurns(ir.passes.InPlacePass):
    """Reshape [a, b, n, d] to [a · b, n, d], Transpose of the last two axes, and Reshape to [a, b, d, n], as torch's
    exporter has it for keys, is one Transpose. Sizes are constants, or known to be those of the tensor."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [(last, first) for last in graph.nodes(model) if (first := _first(last)) is not None]
        sizes, names = sizes_of(model) if found else None, Names(model)
        made = [sizes is not None and _is_turned(first, last, sizes) for last, first in found]
        for (last, first), is_turned in zip(found, made, strict=True):
            if is_turned:
                turn = graph.add_node(
                    last, "Transpose", [first.inputs[0]], names.fresh(f"{last.name}_turn"), "", {"perm": [0, 1, 3, 2]}
                )
                graph.replace_value(last.outputs[0], turn)
        return ir.passes.PassResult(model, modified=any(made))


def _first(last: ir.Node) -> ir.Node | None:
    """The first Reshape of three nodes, of which `last` is the third."""
    turn = graph.own_producer(last.inputs[0], last) if graph.is_op(last, "Reshape") else None
    if turn is None or not graph.is_op(turn, "Transpose") or list(turn.attributes.get_ints("perm", [])) != [0, 2, 1]:
        return None
    first = graph.own_producer(turn.inputs[0], turn)
    return first if first is not None and graph.is_op(first, "Reshape") else None


def _is_turned(first: ir.Node, last: ir.Node, sizes: Sizes) -> bool:
    x, middle, end = sizes.of(first.inputs[0]), sizes.elements_of(first.inputs[1]), sizes.elements_of(last.inputs[1])
    if x is None or len(x) != 4 or middle is None or end is None:
        return False
    a, b, n, d = x
    return _is_joined(middle.sizes, x) and _is_shape(end.sizes, (a, b, d, n))


def _is_joined(asked: Dims, x: Dims) -> bool:
    """Whether [a · b, n, d] is asked for. Where the last two are known to be, the first is what is left; else that must
    be known too: [a, −1, d] are other rows."""
    a, b, n, d = x
    if len(asked) != 3:
        return False
    whole = a * b if isinstance(a, int) and isinstance(b, int) else None
    return _is_shape(asked, (asked[0], n, d)) and (whole == asked[0] or asked[1:] == (n, d))


def _is_shape(asked: Dims, wanted: Dims) -> bool:
    """Whether these sizes are asked for: one may be −1, which is what is left. A zero is the size of another axis."""
    if len(asked) != len(wanted) or asked.count(-1) > 1 or 0 in asked:
        return False
    return all(size in (-1, one) for size, one in zip(asked, wanted, strict=True))

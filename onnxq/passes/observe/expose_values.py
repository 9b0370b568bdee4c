"""Makes values of a model, in subgraphs too, outputs that a caller can read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names


class ExposeValues(ir.passes.InPlacePass):
    """Add the named values to the outputs of the main graph.

    1. A value of the main graph becomes an output itself.
    2. A value of an If branch becomes an output of both branches, empty in the other one, and so on outwards. It comes
       out in float32, because both branches must give the same type and not every value's type is known.
    3. Of a value in a Loop or Scan body, which may change its shape from turn to turn, each turn's lowest and highest
       number come out, stacked to [turns, 2].

    The names under which the values come out are left in `outputs`, in the order asked for; None where a value is
    inside something else.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        self.outputs: list[str | None] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        owners = _owners(model)
        by_name = _values_by_name(model)
        fresh = Names(model)
        self.outputs, exposed = [], 0
        for name in self.names:
            outer: ir.Value | None = by_name[name]
            while outer is not None and outer.graph is not model.graph:
                assert isinstance(outer.graph, ir.Graph)
                outer = _lift(outer, owners.get(id(outer.graph)), fresh)
            if outer is not None and not outer.is_graph_output():
                if outer.is_graph_input() or outer.producer() is None:
                    outer = _copy(model.graph, outer, fresh)
                model.graph.outputs.append(outer)
                exposed += 1
            self.outputs.append(None if outer is None else outer.name)
        return ir.passes.PassResult(model, modified=exposed > 0)


def _values_by_name(model: ir.Model) -> dict[str, ir.Value]:
    found: dict[str, ir.Value] = {}
    for each in graph.graphs(model):
        for value in (*each.inputs, *(output for node in each for output in node.outputs)):
            found[value.name or ""] = value
    return found


def _owners(model: ir.Model) -> dict[int, ir.Node]:
    """The node that each subgraph belongs to."""
    found: dict[int, ir.Node] = {}
    for node in graph.nodes(model):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                found[id(attribute.as_graph())] = node
    return found


def _copy(owner: ir.Graph, value: ir.Value, fresh: Names, dtype: ir.DataType | None = None) -> ir.Value:
    """A copy of `value`, in another type if one is given."""
    name = fresh.fresh(f"{value.name}_copy")
    if dtype is None:
        node = ir.node("Identity", [value], name=name)
    else:
        node = ir.node("Cast", [value], attributes={"to": int(dtype)}, name=name)
    node.outputs[0].name = fresh.fresh(f"{value.name}_copy")
    owner.append(node)
    return node.outputs[0]


def _lift(value: ir.Value, owner: ir.Node | None, fresh: Names) -> ir.Value | None:
    """A value of the graph around `value`'s that carries it, or None if `owner` is not a node we know."""
    body = value.graph
    assert isinstance(body, ir.Graph)
    if graph.is_op(owner, "If"):
        inner = _copy(body, value, fresh, dtype=ir.DataType.FLOAT)
        for attribute in owner.attributes.values():  # type: ignore[union-attr]
            branch = attribute.as_graph()
            branch.outputs.append(inner if branch is body else _empty(branch, fresh))
    elif graph.is_op(owner, "Loop", "Scan"):
        body.outputs.append(_extremes(body, value, fresh))
        for key in ("scan_output_axes", "scan_output_directions"):
            if (old := owner.attributes.get(key)) is not None:  # type: ignore[union-attr]
                owner.attributes[key] = ir.AttrInt64s(key, [*old.as_ints(), 0])  # type: ignore[union-attr]
    else:
        return None
    assert owner is not None
    owner.resize_outputs(len(owner.outputs) + 1)
    owner.outputs[-1].name = fresh.fresh(f"{value.name}_out")
    return owner.outputs[-1]


def _empty(branch: ir.Graph, fresh: Names) -> ir.Value:
    node = ir.node("Constant", [], attributes={"value": ir.tensor(np.zeros(0, np.float32))}, name=fresh.fresh("empty"))
    node.outputs[0].name = fresh.fresh("empty")
    branch.append(node)
    return node.outputs[0]


def _extremes(body: ir.Graph, value: ir.Value, fresh: Names) -> ir.Value:
    """[2]: the lowest and the highest number of `value`."""
    shape = graph.add_constant(body, fresh.fresh("one"), ir.tensor(np.array([1], np.int64)))
    parts = []
    for op in ("ReduceMin", "ReduceMax"):
        reduce = ir.node(op, [value], attributes={"keepdims": 0}, name=fresh.fresh(op))
        reshape = ir.node("Reshape", [reduce.outputs[0], shape], name=fresh.fresh("flat"))
        reduce.outputs[0].name, reshape.outputs[0].name = fresh.fresh(op), fresh.fresh("flat")
        body.extend([reduce, reshape])
        parts.append(reshape.outputs[0])
    node = ir.node("Concat", parts, attributes={"axis": 0}, name=fresh.fresh("extremes"))
    node.outputs[0].name = fresh.fresh("extremes")
    body.append(node)
    return node.outputs[0]

"""CastLike becomes Cast, so that what it converts can be folded although what it is like is an activation; what is of
the type already is not cast."""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types, infer_types
from onnxq.passes.normalize.remove_identities import bypass


class NameCastTypes(ir.passes.InPlacePass):
    """Make casts say what they do.

    1. CastLike(x, like) becomes Cast(x) to the type of `like`, where that is known. Exporters that were told not to
       optimize write a bias as Expand(CastLike(constant, activation), shape).
    2. Cast(x) to the type that x has goes, where that is known: exporters write one wherever a Softmax was asked for a
       result in float32, and where float16 was widened both are left.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [
            node for node in graph.nodes(model) if graph.is_op(node, "CastLike", "Cast") and None not in node.inputs
        ]
        found = [node for node in nodes if node.op_type == "CastLike" or graph.constant(node.inputs[0]) is None]
        if not found:
            return ir.passes.PassResult(model, modified=False)
        types, names, modified = functools.cache(lambda: infer_types(model)), Names(model), False
        for node in found:
            if node.op_type == "CastLike":
                modified = _named(node, types, names) or modified
            elif _type_of(node.inputs[0], types) == graph.attribute_int(node, "to", 0):
                modified = bypass(node) or modified
        return ir.passes.PassResult(model, modified=modified)


def _named(node: ir.Node, types: Callable[[], Types], names: Names) -> bool:
    dtype = _type_of(node.inputs[1], types) if len(node.inputs) == 2 else None
    if dtype is None or node.graph is None:
        return False
    name, node.name = node.name or "", names.fresh(f"{node.name}_like")
    made = graph.add_node(node, "Cast", [node.inputs[0]], name, names.fresh(f"{name}_out"), {"to": int(dtype)})
    graph.replace_value(node.outputs[0], made)
    node.graph.remove(node, safe=True)
    return True


def _type_of(value: ir.Value | None, types: Callable[[], Types]) -> ir.DataType | None:
    """By the file, or where that does not say it by `types`, which takes as long as all the rest."""
    return None if value is None else value.dtype or types().of(value).dtype

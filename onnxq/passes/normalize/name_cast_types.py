"""CastLike becomes Cast, so that what it converts can be folded although what it is like is an activation."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import infer_types


class NameCastTypes(ir.passes.InPlacePass):
    """Replace CastLike(x, like) by Cast(x) to the type of `like`, where that is known.

    Exporters that were told not to optimize write a bias as Expand(CastLike(constant, activation), shape).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [node for node in graph.nodes(model) if graph.is_op(node, "CastLike") and len(node.inputs) == 2]
        if not nodes:
            return ir.passes.PassResult(model, modified=False)
        types, names, named = infer_types(model), Names(model), 0
        for node in nodes:
            like = node.inputs[1]
            dtype = None if like is None else (like.dtype or types.of(like).dtype)
            if dtype is None or node.graph is None:
                continue
            name, node.name = node.name or "", names.fresh(f"{node.name}_like")
            made = graph.add_node(node, "Cast", [node.inputs[0]], name, names.fresh(f"{name}_out"), {"to": int(dtype)})
            graph.replace_value(node.outputs[0], made)
            node.graph.remove(node, safe=True)
            named += 1
        return ir.passes.PassResult(model, modified=named > 0)

"""Removes unused nodes and initializers, in subgraphs too."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxq.model import graph
from onnxq.model.operators import operator_of


class RemoveUnused(ir.passes.InPlacePass):
    """onnx_ir's own pass for nodes, which leaves two things that are removed here, and takes one that is put back.

    1. What the body of an unused If, Loop or Scan reads stays used by it, after it is gone.
    2. The constants of subgraphs.
    3. Inputs that are left out at the end: of a Loop without a condition and states they count as inputs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = _remove_nodes(model.graph)
        modified |= RemoveUnusedNodesPass()(model).modified
        opset = graph.opset(model)
        for node in graph.nodes(model):
            known = operator_of(node, opset)
            if known is not None and len(node.inputs) < known.inputs[0]:
                node.resize_inputs(known.inputs[0])
        for body in graph.graphs(model):
            spared = {id(value) for value in (*body.inputs, *body.outputs)}
            for name, value in list(body.initializers.items()):
                if not value.uses() and id(value) not in spared:
                    del body.initializers[name]
                    modified = True
        return ir.passes.PassResult(model, modified=modified)


def _remove_nodes(body: ir.Graph) -> bool:
    """Whether there were any whose outputs nobody reads."""
    modified, outputs = False, {id(value) for value in body.outputs}
    for node in reversed(body):
        if any(value.uses() or id(value) in outputs for value in node.outputs):
            for inner in graph.bodies(node):
                modified |= _remove_nodes(inner)
            continue
        graph.detach_bodies(node)
        body.remove(node, safe=True)
        modified = True
    return modified

"""Removes unused nodes and initializers, in subgraphs too."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxq.model import graph


class RemoveUnused(ir.passes.InPlacePass):
    """onnx_ir's own pass for nodes, which spares the constants of subgraphs; these are removed here."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = RemoveUnusedNodesPass()(model).modified
        for body in graph.graphs(model):
            spared = {id(value) for value in (*body.inputs, *body.outputs)}
            for name, value in list(body.initializers.items()):
                if not value.uses() and id(value) not in spared:
                    del body.initializers[name]
                    modified = True
        return ir.passes.PassResult(model, modified=modified)

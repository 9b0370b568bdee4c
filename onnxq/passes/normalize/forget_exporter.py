"""Removes what an exporter left for its own use: stack traces and comments on nodes, often larger than the graph."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.load import TYPE
from onnxq.model.origin import CALL, MODULE, call_of, module_of


class ForgetExporter(ir.passes.InPlacePass):
    """Clear metadata and doc strings of nodes and values. Those of the model belong to its user and stay.

    The module that a node computes is remembered as its `MODULE`, and what was called as its `CALL`; which maps an
    output holds (`TYPE`), onnxq itself has noted there.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for body in graph.graphs(model):
            for item in (*body, *body.inputs, *body.initializers.values(), *(o for n in body for o in n.outputs)):
                if isinstance(item, ir.Node):
                    said = {MODULE: module_of(item), CALL: call_of(item)}
                    item.meta.update({key: words for key, words in said.items() if words})
                forgotten = item.metadata_props.keys() - {TYPE}
                if forgotten or item.doc_string:
                    for key in forgotten:
                        del item.metadata_props[key]
                    item.doc_string = None
                    modified = True
        return ir.passes.PassResult(model, modified=modified)

"""QuantizeLinear and DequantizeLinear of onnxruntime's domain become ONNX's own."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph

PAIRS = ("QuantizeLinear", "DequantizeLinear")
#: In which ONNX's have all types that onnxruntime's have.
OPSET = 21


class StandardPairs(ir.passes.InPlacePass):
    """Quantizers write them in the domain of onnxruntime to have 16 and 4 bits before opset 21. They compute the same.

    The opset stays: below 21 the graph is for reading, and onnxruntime may refuse to run it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = has_own_pairs(model)
        for node in graph.nodes(model):
            if graph.is_op(node, *PAIRS, domain=graph.MICROSOFT):
                node.domain = ""
        return ir.passes.PassResult(model, modified=found)


def has_own_pairs(model: ir.Model) -> bool:
    """Whether a model has them in onnxruntime's domain."""
    return any(graph.is_op(node, *PAIRS, domain=graph.MICROSOFT) for node in graph.nodes(model))

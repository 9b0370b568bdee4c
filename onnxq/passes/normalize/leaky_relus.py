"""PRelu of one slope is a LeakyRelu, which runtimes fuse and compute in vectors."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph


class LeakyRelus(ir.passes.InPlacePass):
    """PRelu(x, slope) becomes LeakyRelu(x, alpha = slope), where the slope is one number of float32 for all of x."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        made = [_replaced(node) for node in graph.nodes(model) if graph.is_op(node, "PRelu")]
        return ir.passes.PassResult(model, modified=any(made))


def _replaced(node: ir.Node) -> bool:
    slope = graph.constant(node.inputs[1])
    if node.inputs[0] is None or slope is None or slope.size != 1 or slope.dtype is not ir.DataType.FLOAT:
        return False
    node.attributes["alpha"] = ir.AttrFloat32("alpha", float(slope.numpy().reshape(())))
    node.op_type = "LeakyRelu"
    node.resize_inputs(1)
    return True

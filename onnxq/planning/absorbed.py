"""Activations that vanish into the int8 kernel before them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.runtime import known


def final_output(node: ir.Node) -> ir.Value:
    """The value an int8 kernel for `node` stores: behind the Relu or Clip that the kernel absorbs, if there is one."""
    out = node.outputs[0]
    follower = graph.only_consumer(out)
    if follower is None or follower.graph is not node.graph or not graph.is_op(follower, *known.ABSORBED):
        return out
    if node.op_type not in known.ABSORBING | known.ABSORBING_IN_REGIONS:
        return out
    if follower.inputs[0] is not out or any(v is not None and graph.constant(v) is None for v in follower.inputs[1:]):
        return out
    return follower.outputs[0]


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """The node whose int8 kernel would store `value`, seen through an absorbed activation."""
    node = None if value is None else value.producer()
    if node is not None and graph.is_op(node, *known.ABSORBED) and node.inputs[0] is not None:
        before = node.inputs[0].producer()
        if before is not None and final_output(before) is value:
            return before
    return node

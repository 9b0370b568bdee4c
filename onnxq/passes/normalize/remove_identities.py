"""Removes Identity, and Dropout at inference: they only break chains of integer kernels and hide shared weights."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.runtime import known


class RemoveIdentities(ir.passes.InPlacePass):
    """Let the readers of y = Identity(x) read x.

    1. Identity, and Dropout whose mask nobody reads and which does not train (no constant-true `training_mode`).
    2. Where y is a graph output it stays, unless x is made in the same graph for nobody else's output: then x takes
       over the name of y. (An x from an outer graph, an input or an initializer cannot become a body's output.)
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(graph.nodes(model)):
            if _does_nothing(node) and bypass(node):
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _does_nothing(node: ir.Node) -> bool:
    if graph.is_op(node, "Identity"):
        return node.inputs[0] is not None
    if not graph.is_op(node, "Dropout") or node.inputs[0] is None:
        return False
    if any(map(known.is_wanted, node.outputs[1:])):
        return False
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = graph.constant(node.inputs[2])
    return training is not None and not training.numpy().any()


def bypass(node: ir.Node) -> bool:
    """Let readers of `node` read its first input; False where that cannot be, at a graph output."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None and node.graph is not None
    if y.is_graph_output():
        producer = x.producer()
        if producer is None or producer.graph is not node.graph or x.is_graph_output():
            return False
        x.name, x.type, x.shape, y.name = y.name, y.type, y.shape, None
        y.replace_all_uses_with(x, replace_graph_outputs=True)
    else:
        y.replace_all_uses_with(x)
    node.graph.remove(node, safe=True)
    return True

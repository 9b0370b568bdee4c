"""HardSigmoid as additions, products and Clip, for runtimes that compute those inside of other kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import infer_types

#: HardSwish of Howard et al. 2019: x times the HardSigmoid of this slope and offset.
SLOPE, OFFSET = 1 / 6, 0.5
CLOSE = 1e-6
#: The opset from which on bounds of Clip are inputs.
CLIP_READS = 11


class SpellHardSigmoids(ir.passes.InPlacePass):
    """What `passes/spelling/hard_sigmoids.py` joined is written in the words that are fused into the kernel before it.

    1. x · HardSigmoid(x, 1/6, 0.5) as x · Clip(x + 3, 0, 6) / 6, which is taken for HardSwish.
    2. Any other HardSigmoid as Clip(alpha · x + beta, 0, 1). The operator itself is computed by a plain loop in
       float32, behind a change of layout and type.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in graph.nodes(model) if graph.is_op(node, "HardSigmoid")]
        if not found or graph.opset(model) < CLIP_READS:
            return ir.passes.PassResult(model, modified=False)
        names, types = Names(model), infer_types(model)
        found = [node for node in found if types.of(node.outputs[0]).dtype is ir.DataType.FLOAT]
        for node in found:
            spell(node, names)
        return ir.passes.PassResult(model, modified=bool(found))


def spell(node: ir.Node, names: Names) -> None:
    """Other nodes in the place of a HardSigmoid, and of the Mul behind it where the two are a HardSwish."""
    owner, x = node.graph, node.inputs[0]
    assert isinstance(owner, ir.Graph) and x is not None
    alpha = graph.attribute_float(node, "alpha", 0.2)
    beta = graph.attribute_float(node, "beta", 0.5)

    def number(value: float) -> ir.Value:
        return graph.add_constant(owner, names.fresh(f"{node.name}_number"), ir.tensor(np.float32(value)))

    def step(before: ir.Node, op_type: str, *inputs: ir.Value) -> ir.Value:
        name = names.fresh(f"{before.name}_{op_type.lower()}")
        return graph.add_node(before, op_type, list(inputs), name, name)

    reader = graph.only_consumer(node.outputs[0])
    is_product = graph.is_op(reader, "Mul") and reader is not None and {*reader.inputs} == {x, node.outputs[0]}
    last = reader if is_product and abs(alpha - SLOPE) < CLOSE and abs(beta - OFFSET) < CLOSE else None
    if last is not None and last.graph is owner:
        clipped = step(last, "Clip", step(last, "Add", x, number(3.0)), number(0.0), number(6.0))
        y, replaced = step(last, "Div", step(last, "Mul", x, clipped), number(6.0)), [last, node]
    else:
        scaled = step(node, "Add", step(node, "Mul", x, number(alpha)), number(beta))
        y, replaced = step(node, "Clip", scaled, number(0.0), number(1.0)), [node]
    graph.replace_value(replaced[0].outputs[0], y)
    owner.remove(replaced, safe=True)

"""Mixtures of experts whose matrices stay packed in memory: com.microsoft.MoE becomes QMoE."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.formats import Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, has_weights, weights_of
from onnxq.passes.quantize import PlanPass
from onnxq.passes.quantize._weight_forms import WeightForms
from onnxq.plan import Choice, Method


class QuantizeExperts(PlanPass):
    """Replace each PACKED MoE by com.microsoft.QMoE.

    1. Codes, scales and zero points are those of MatMulNBits for the rows of all experts, one after the other.
    2. MoE weighs its experts by the softmax over all of them, unless it is to normalize the weights of those it took;
       QMoE always normalizes (measured, onnxruntime 1.31). So where MoE does not, the softmax is computed by a node of
       its own and given to QMoE as the weights to use.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        choices = {c.node: c for c in self.plan.those(Method.PACKED) if c.op == "MoE"}
        nodes = [node for node in graph.nodes(model) if node.name in choices and has_weights(node)]
        for node in nodes:
            _replace(node, choices[node.name or ""], constants)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace(node: ir.Node, choice: Choice, constants: WeightForms) -> None:
    x, router, w1, b1, w2, b2 = [*node.inputs, *[None] * 6][:6]
    assert router is not None
    packed = {weight.value: _packed(weight, choice, constants) for weight in weights_of(node)}
    assert w1 is not None and w2 is not None
    (codes1, scales1, zeros1), (codes2, scales2, zeros2) = packed[w1], packed[w2]
    inputs = [x, router, codes1, scales1, b1, codes2, scales2, b2, None, None, None, zeros1, zeros2]
    names, name = constants.names, node.name or ""
    if not graph.attribute_int(node, "normalize_routing_weights", 0):
        softmax = names.fresh(f"{name}_routing")
        inputs += [None, graph.add_node(node, "Softmax", [router], softmax, softmax, {"axis": -1})]
    node.name = names.fresh(f"{name}_float")
    made = ir.node("QMoE", inputs, attributes=dict(node.attributes.items()), domain=graph.MICROSOFT, name=name)
    made.attributes["expert_weight_bits"] = ir.AttrInt64("expert_weight_bits", formats.get(choice.format or "").bits)
    made.attributes["block_size"] = ir.AttrInt64("block_size", choice.block or 0)
    made.outputs[0].name = names.fresh(f"{name}_out")
    node.prepend(made)
    graph.replace_value(node.outputs[0], made.outputs[0])
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _packed(weight: Weight, choice: Choice, constants: WeightForms) -> list[ir.Value]:
    """Codes, scales and zero points of [experts, N, K]."""
    (experts, n, k), block = weight.shape, choice.block
    assert block is not None
    format, granularity = formats.get(choice.format or ""), Granularity(1, block)
    rows = graph.flattened(weight.tensor, (experts * n, k))
    groups = choice.groups(2, 1)
    encoding = constants.new_encoding(weight.value, format, granularity, "MatMul", tensor=rows, groups=groups)
    parts = {
        "_qmoe": encoding.part(layouts.stacked(layouts.gather_block, experts)),
        "_scale": encoding.part(layouts.stacked(layouts.scales_by_row, experts), weight.tensor.dtype),
        "_zero_point": encoding.part(layouts.stacked(layouts.matmul_nbits_zero_points, experts)),
    }
    key = (format.name, block)
    return [constants.value(weight.value, suffix, key, part) for suffix, part in parts.items()]

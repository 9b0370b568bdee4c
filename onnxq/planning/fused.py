"""Which attentions become one node: all in float32, where products are computed by kernels of the onnxq domain."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.plan import Choice, Method, Plan
from onnxq.planning.attention import Attention, attention_at
from onnxq.recipe import KEEP, Recipe
from onnxq.targets import Target


def with_attention(plan: Plan, model: ir.Model, recipe: Recipe, target: Target, types: Types) -> Plan:
    """`plan` with a choice for the Softmax of each attention."""
    if not target.has_onnxq_ops or not any(choice.op != "Gather" for choice in plan.those(Method.PACKED)):
        return plan
    made = []
    for node in graph.nodes(model):
        found = attention_at(node)
        if found is None or node.name in plan.choices or not _is_float32(found, types):
            continue
        if recipe.scheme_for(node.name or "", node.op_type) != KEEP:
            made.append(Choice(node.name or "", node.op_type, Method.FUSED))
    return plan.replacing(made)


def _is_float32(found: Attention, types: Types) -> bool:
    """Whether it is known to be, of operands that are known to be matrices."""
    made = types.of(found.softmax.outputs[0])
    ranks = [types.of(value).rank for value in (found.q, found.v, found.softmax.outputs[0])]
    return made.dtype is ir.DataType.FLOAT and all(rank is not None and rank >= 2 for rank in ranks)

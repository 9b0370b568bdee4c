"""Whether a plan from a file can be carried out: an edited one may ask for what no kernel does."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxq import formats, targets
from onnxq.errors import BadRecipe
from onnxq.model import graph
from onnxq.model.weights import reads_constant, weights_of
from onnxq.plan import COMPUTING, Choice, Method, Plan
from onnxq.planning import experts, int8_regions
from onnxq.planning.attention import attention_at
from onnxq.targets import Target


def require_possible(plan: Plan, model: ir.Model, target: Target, path: Path) -> None:
    """Look at every node of the plan.

    Raises:
        BadRecipe: the plan is for another target, names a node that the model at `path` does not have or that is
            another operator there, or asks for a method or number format that the target has no form of for it.
    """
    if plan.target != target.name:
        raise BadRecipe(f"the plan is for target {plan.target}, not for {target.name}")
    known = {node.name: node for node in graph.nodes(model)}
    for choice in plan:
        node = known.get(choice.node)
        if node is None:
            raise BadRecipe(f"the plan names node '{choice.node}', which '{path}' does not have")
        if choice.op != node.op_type:
            raise BadRecipe(f"the plan: node '{choice.node}' is {node.op_type} in '{path}', not {choice.op}")
        if choice.format is not None and (choice.method is not Method.STATIC or choice.format != target.in_blocks):
            targets.require_format(target, choice.format)
        if choice.method is Method.FUSED and not (target.has_onnxq_ops and attention_at(node)):
            raise BadRecipe(f"the plan: node '{choice.node}' cannot be fused: only attention on target onnxq is")
        if choice.method is Method.STATIC and choice.format is None and not _reads_activations(node, plan):
            raise BadRecipe(
                f"the plan: node '{choice.node}' cannot be static: all that its kernel would read is constant"
            )
        if choice.format is not None and choice.method in COMPUTING and (why := _refusal(choice, node, target)):
            raise BadRecipe(f"the plan: node '{choice.node}' cannot be {choice.method} in {choice.format}: {why}")


def _reads_activations(node: ir.Node, plan: Plan) -> bool:
    """Whether an int8 kernel without weights for it reads anything that is no constant."""
    read = [reader.inputs[index] for reader, index in int8_regions.reads(node, regions=int8_regions.has_regions(plan))]
    return any(value is not None and graph.constant(value) is None for value in read)


def _refusal(choice: Choice, node: ir.Node, target: Target) -> str:
    """Why no kernel computes it so; empty if one does."""
    weights = list(weights_of(node))
    if not weights:
        return "it has no constant weights"
    if any(weight.tensor.dtype is ir.DataType.DOUBLE for weight in weights):
        return "it computes in float64"
    if choice.method is Method.STATIC and reads_constant(node, weights):
        return "what it reads is constant"
    if choice.method is Method.STATIC and target.has_integer_biases and (number := int8_regions.beyond_integers(node)):
        return f"its bias holds {number}, which is no integer"
    format = formats.get(choice.format or "")
    if node.op_type == "MoE":
        return experts.refusal(node, format.name, choice.block, target)
    if not target.has_kernel(choice.method, node.op_type):
        return f"there is no such kernel for {node.op_type}"
    if choice.method is Method.PACKED and format.default_block is None and format.kernel is None:
        return "no kernel reads it packed"
    # Dense formats are asked for as stored ones, and placed on a kernel where there is one.
    asked = Method.STORED if format.is_dense else choice.method
    for weight in weights:
        placed = target.place(weight, choice.to(asked, format.name, choice.block))
        if (placed.method, placed.format) != (choice.method, format.name):
            return placed.reason or "no kernel does"
    return ""

"""Operators that run in int8 only because the convolutions around them do, and which values that makes int8.

An operator between a DequantizeLinear and a QuantizeLinear becomes an integer kernel only if it is in
`known.OWN_SCALE` or, with one scale for its input and output, in `known.SAME_SCALE`. All others compute in float and
pay for the conversions.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq import targets
from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.plan import Choice, Method, Plan
from onnxq.recipe import Recipe
from onnxq.runtime import known


def add_to(plan: Plan, model: ir.Model, recipe: Recipe, types: Types) -> Plan:
    """`plan` with a choice for every operator that can run in int8 between static int8 convolutions.

    An operator is taken in only if all it reads comes from int8 kernels and something int8 reads what it makes:
    otherwise it would add conversions instead of saving them.
    """
    convolutions = {choice.node for choice in plan.those(Method.STATIC) if choice.op == "Conv"}
    if not convolutions:
        return plan
    candidates = {
        node.name or ""
        for node in graph.nodes(model)
        if _can_join(node, types) and recipe.scheme_for(node.name or "", node.op_type) == "w8a8"
    }
    members = _between(
        model, convolutions, {c.node for c in plan.those(Method.STATIC)}, candidates, _one_is_enough(plan)
    )
    extra = (Choice(n.name or "", n.op_type, Method.STATIC) for n in graph.nodes(model) if n.name in members)
    return plan.replacing(extra)


def prune(plan: Plan, model: ir.Model) -> Plan:
    """`plan` without the operators that no longer lie between int8 kernels, after some of those went back to float."""
    static = plan.those(Method.STATIC)
    convolutions = {choice.node for choice in static if choice.op == "Conv"}
    members = {choice.node for choice in static if has_no_weights(choice)}
    left = _between(model, convolutions, {choice.node for choice in static} - members, members, _one_is_enough(plan))
    gone = [choice for choice in static if choice.node in members - left]
    return plan.replacing(Choice(c.node, c.op, Method.KEEP, reason="no longer between int8 operators") for c in gone)


def _one_is_enough(plan: Plan) -> bool:
    return targets.get(plan.target).one_is_enough


def has_no_weights(choice: Choice) -> bool:
    """Whether this static choice is for an operator without weights."""
    return choice.method is Method.STATIC and choice.format is None


def makes_int8(choice: Choice | None) -> bool:
    """Whether the node's output is int8: convolutions and the operators between them. MatMul and Gemm return float."""
    return choice is not None and choice.method is Method.STATIC and choice.op not in ("MatMul", "Gemm")


def final_output(node: ir.Node) -> ir.Value:
    """The value an int8 kernel for `node` stores: behind the Relu or Clip that the kernel absorbs, if there is one."""
    out = node.outputs[0]
    follower = graph.only_consumer(out)
    if follower is None or follower.graph is not node.graph or not graph.is_op(follower, *known.ABSORBED):
        return out
    if node.op_type not in known.ABSORBING:
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


def activations(node: ir.Node) -> list[int]:
    """Indices of the inputs that an int8 kernel for `node` reads as quantized activations."""
    if node.op_type in ("Conv", "MatMul", "Gemm") or node.op_type in known.SAME_SCALE:
        return [0]
    return [index for index, value in enumerate(node.inputs) if value is not None]


def _can_join(node: ir.Node, types: Types) -> bool:
    if not known.is_fused_in_int8(node):
        return False
    return types.of(node.outputs[0]).dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, None)


def _between(
    model: ir.Model, convolutions: set[str], static: set[str], candidates: set[str], one_is_enough: bool
) -> set[str]:
    """The largest subset of `candidates` of which each reads only int8 values and is read by an int8 operator.

    Args:
        one_is_enough: an Add may read one value that is not int8: where regions are nodes of their own, a conversion
            costs less than leaving one.
    """
    members = set(candidates)
    by_name = {node.name: node for node in graph.nodes(model) if node.name in candidates}
    while True:
        int8 = convolutions | members
        lost = {name for name in members if not _is_between(by_name[name], int8, static | members, one_is_enough)}
        if not lost:
            return members
        members -= lost


def _is_between(node: ir.Node, int8: set[str], readers: set[str], one_is_enough: bool) -> bool:
    read = [node.inputs[index] for index in activations(node)]
    made = [value for value in read if graph.constant(value) is None]
    others = [value for value in made if (p := producer_of(value)) is None or p.name not in int8]
    if len(others) == len(made) or (others and not (one_is_enough and node.op_type == "Add")):
        return False
    outputs = [final_output(node)] if len(node.outputs) == 1 else list(node.outputs)
    return any(use.node.name in readers for output in outputs for use in output.uses())

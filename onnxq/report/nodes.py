"""The nodes of a model with what became of each: by the plan, where there is one, else by what lies in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.weights import find_weights
from onnxq.plan import Plan
from onnxq.report.document import Layer, Node, WeightError

#: How operators are called that compute on integers or packed weights.
ON_CODES = (
    *("QLinear", "QGemm", "ConvInteger", "MatMulInteger", "Dynamic", "MatMulNBits", "MatMulBnb4", "QMoE"),
    own_ops.RECURRENT,
)
#: Operators that kernels take into themselves, behind others, and how many of them.
BEHIND = ("Relu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "LeakyRelu", "Add", "Mul")
FUSED = 3


def nodes_of(model: ir.Model, plan: Plan | None, weights: Sequence[WeightError] = ()) -> list[Node]:
    """Every node of a model, in order of execution.

    Args:
        model: prepared, if `plan` is to find its nodes.
        weights: what lies in the quantized file, for models without a plan.
    """
    elements: dict[str, int] = {}
    for weight in find_weights(model):
        elements[weight.node.name or ""] = elements.get(weight.node.name or "", 0) + weight.elements
    stored = {weight.node: weight.format for weight in weights}
    found = []
    for node in graph.nodes(model):
        name = node.name or next((value.name for value in node.outputs if value.name), None) or node.op_type
        choice = None if plan is None else plan.choices.get(name)
        if choice is not None:
            label, form, why = choice.label, choice.format or "", choice.reason
        else:
            form = stored.get(name, "")
            label, why = form or ("on codes" if node.op_type.startswith(ON_CODES) else "float"), ""
        count = elements.get(name, 0) if choice is None else choice.elements or elements.get(name, 0)
        found.append(Node(name, node.op_type, label, form, count, why))
    return found


def nodes_of_plan(plan: Plan) -> list[Node]:
    """Those that a plan names, where the model is not at hand."""
    return [Node(c.node, c.op, c.label, c.format or "", c.elements, c.reason) for c in plan]


def owners(model: ir.Model) -> dict[str, str]:
    """The node that a kernel belongs to, by the name onnxruntime gives the kernel: that of the node, of what it makes,
    or of what the function makes that is fused behind it."""
    found: dict[str, str] = {}
    for node in graph.nodes(model):
        name, value = node.name or "", node.outputs[0] if node.outputs else None
        for _ in range(FUSED):
            if value is None:
                break
            found.setdefault(value.name or "", name)
            behind = graph.only_consumer(value)
            value = behind.outputs[0] if behind is not None and behind.op_type in BEHIND and behind.outputs else None
    return found | {node.name: node.name for node in graph.nodes(model) if node.name}


def makers(model: ir.Model) -> dict[str, str]:
    """The node that makes each value, by its name."""
    return {value.name or "": node.name or "" for node in graph.nodes(model) for value in node.outputs}


def add_errors(
    nodes: Sequence[Node], makers: Mapping[str, str], layers: Sequence[Layer], weights: Sequence[WeightError]
) -> None:
    """Give nodes the error at their outputs; where layers were not compared, that of their weights.

    Args:
        makers: of the prepared model, in which another node may make a value, into which others were folded.
    """
    errors: Mapping[str, float | None] = {weight.node: weight.sqnr for weight in weights}
    if layers:
        errors = {makers.get(layer.value, layer.name): layer.sqnr for layer in layers}
    for node in nodes:
        node.sqnr = errors.get(node.name)

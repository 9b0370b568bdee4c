"""Core ML by onnxruntime's provider, ML Program format: `coreml_supported_mlprogram_ops.md` of onnxruntime, with its
notes. What it does not take, the processor computes.
"""

from __future__ import annotations

from onnxq.model import graph
from onnxq.targets.rules import Found, Rule, View
from onnxq.targets.rules._types import ON_PROCESSOR, lacks_types

OPERATORS = frozenset(
    [
        *("Add", "ArgMax", "AveragePool", "Cast", "Ceil", "Clip", "Concat", "Conv", "ConvTranspose", "Cos"),
        *("DepthToSpace", "Div", "Elu", "Erf", "Exp", "GatherND", "Gelu", "Gemm", "GlobalAveragePool"),
        *("GlobalMaxPool", "GridSample", "GroupNormalization", "HardSigmoid", "Identity", "InstanceNormalization"),
        *("LayerNormalization", "LeakyRelu", "MatMul", "Max", "MaxPool", "Mul", "PRelu", "Pow", "Range", "Reciprocal"),
        *("ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Resize", "Round", "Shape", "Sigmoid", "Sin"),
        *("Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze"),
    ]
)
#: Inputs that have to be constant, as far as they are given.
CONSTANT = {
    "Conv": (2,),
    "ConvTranspose": (1, 2),
    "Gemm": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
}
#: Operators that it has for pictures, and convolutions for sounds too.
PICTURES = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")


def operators_it_has(view: View) -> Found:
    """Operators of its list: no operator on codes or packed weights is among them."""
    for node in view.nodes:
        if node.domain or node.op_type not in OPERATORS:
            yield node, f"Core ML's provider has no {node.op_type}: the processor computes it", False


def constant_inputs(view: View) -> Found:
    """Weights, biases, bounds and sizes that have to be constant."""
    for node in view.of(*CONSTANT):
        for index in CONSTANT[node.op_type]:
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None and not view.is_constant(value):
                yield node, f"Core ML's provider wants input {index} of {node.op_type} to be constant", False


def forms_it_has(view: View) -> Found:
    """Convolutions of one or two dimensions, pools of two; no SAME padding of ConvTranspose, no batches of GatherND."""
    for node in view.of("Conv", "ConvTranspose", *PICTURES, "GatherND"):
        rank = None if node.inputs[0] is None else view.types.of(node.inputs[0]).rank
        ranks = (4,) if node.op_type in PICTURES else (3, 4)
        if node.op_type != "GatherND" and rank is not None and rank not in ranks:
            yield node, f"Core ML's provider has no {node.op_type} of {rank - 2} dimensions", False
        if node.op_type == "ConvTranspose" and graph.attribute_string(node, "auto_pad", "NOTSET").startswith("SAME"):
            yield node, "Core ML's provider has no SAME padding of ConvTranspose", False
        if node.op_type == "GatherND" and graph.attribute_int(node, "batch_dims", 0):
            yield node, "Core ML's provider has no GatherND with batches", False


def types_it_has(view: View) -> Found:
    """No strings, and no float64."""
    yield from lacks_types(view, "Core ML's provider", ON_PROCESSOR)


RULES: tuple[Rule, ...] = (operators_it_has, constant_inputs, forms_it_has, types_it_has)

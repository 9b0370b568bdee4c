"""Makes a plan: recipe × target × model → a choice for each node. Measurements come later (`tune.py`)."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq import formats, graph, passengers, targets
from onnxq.bodies import KERNEL_FORMATS
from onnxq.infer import Types
from onnxq.passes.change_float_type import STORED_TYPE
from onnxq.plan import COMPUTING, Choice, Method, Plan
from onnxq.recipe import KEEP, SCHEMES, Recipe
from onnxq.targets import Placement, Target
from onnxq.weights import Weight, fits_half, other_constants, weights_of

#: Operators that carry most of a network's arithmetic; the ones a scheme's own kernels are for.
MATMULS = ("MatMul", "Gemm")
#: Weights of a channel up to which int8 with a float32 scale saves less than a third of the bytes of float16.
DEPTHWISE = 9
_WEIGHTS = {"w4a16": "uint4", "w8a16": "int8"}
KEPT = "kept by a rule of the recipe"
_CASTS = {"fp16": "float16", "bf16": "bfloat16", "float16": "float16", "bfloat16": "bfloat16"}


def make_plan(model: ir.Model, recipe: Recipe, target: Target, types: Types, *, opset_note: str = "") -> Plan:
    """A choice for every node that has weights, and for those between int8 convolutions.

    Raises:
        BadRecipe: the target has no form for a number format that was asked for; the message names targets that do.

    Args:
        model: prepared (`prepare.py`), at the opset the target asked for if it could be raised.
        recipe: resolved (`Recipe.resolve`).
        types: of the model's values, as far as they can be inferred.
        opset_note: why the opset could not be raised; empty if it is high enough.
    """
    for scheme in sorted(recipe.schemes - SCHEMES.keys()):
        targets.require_format(target, scheme)
    choices: dict[str, Choice] = {}
    for node in graph.nodes(model):
        weights = list(weights_of(node))
        if weights:
            choices[node.name or ""] = _choose(node, weights, recipe, target, opset_note)
        elif recipe.scheme == "fp16" and recipe.scheme_for(node.name or "", node.op_type) == KEEP:
            choices[node.name or ""] = Choice(node.name or "", node.op_type, Method.KEEP, reason=KEPT)
    for node, value in other_constants(model):
        if node.name not in choices:
            choices[node.name or ""] = _choose_constant(node, value, recipe, opset_note)
    plan = Plan(recipe.scheme, target.name, choices)
    return passengers.add_to(plan, model, recipe, types)


def _choose(node: ir.Node, weights: list[Weight], recipe: Recipe, target: Target, opset_note: str) -> Choice:
    name, elements = node.name or "", sum(weight.elements for weight in weights)
    scheme = recipe.scheme_for(name, node.op_type)
    if scheme == KEEP:
        return _kept(node, [weight.value for weight in weights], elements, KEPT)
    wish = _wish(scheme, node.op_type, recipe.block_size)
    is_contrib = wish.method is Method.PACKED and target.has_contrib_ops
    if opset_note and wish.method in COMPUTING and not is_contrib:
        wish = targets.stored(wish, opset_note)
    if wish.method is Method.DYNAMIC and node.op_type == "LSTM" and len(weights) != 2:
        wish = targets.stored(wish, "its weights are not both constant")
    if wish.method is Method.STATIC and node.op_type == "Conv" and _computes_bias(node):
        wish = targets.stored(wish, "its bias is computed, so no int8 kernel takes it: unpacked when the model loads")
    in_float64 = any(weight.tensor.dtype is ir.DataType.DOUBLE for weight in weights)
    if in_float64 and wish.method in (*COMPUTING, Method.HALF):
        wish = targets.stored(wish, "computes in float64, which no packed or int8 kernel does")
    values = [weight.value for weight in weights]
    if opset_note and formats.get(wish.format).code_type.kind not in "iu" and wish.format != "float16":
        return _kept(node, values, elements, opset_note)
    if wish.format == "float16" and (unfit := _unfit(values)):
        return _kept(node, values, elements, unfit)
    for weight in weights:
        placed = target.place(weight, wish)
        if placed != wish:
            wish = placed
    if wish.method is Method.STORED and wish.format == "int8" and all(_is_depthwise(weight) for weight in weights):
        wish = Placement(Method.STORED, "float16", None, "one scale for so few weights: 16 bits cost little more")
    return Choice(name, node.op_type, wish.method, wish.format, wish.block, elements, wish.reason)


def _is_depthwise(weight: Weight) -> bool:
    """Whether a scale a channel covers so few weights that it takes a good part of the bytes."""
    return weight.node.op_type == "Conv" and math.prod(weight.shape[1:]) <= DEPTHWISE


def _computes_bias(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return bias is not None and graph.constant(bias) is None


def _wish(scheme: str, op: str, block_size: int | None) -> Placement:
    """What a scheme asks for an operator, before the target has its say."""
    if scheme in _CASTS:
        return Placement(Method.HALF if scheme == "fp16" else Method.STORED, _CASTS[scheme], None)
    if scheme == "w8a8":
        if op in ("Conv", *MATMULS):
            return Placement(Method.STATIC, "int8", None)
        return Placement(Method.STORED, "int8", None, f"no static int8 kernel for {op}: unpacked when the model loads")
    if scheme == "w8a8-dynamic":
        if op in (*MATMULS, "LSTM"):
            return Placement(Method.DYNAMIC, "int8", None)
        reason = f"no fast dynamic int8 kernel for {op}: unpacked when the model loads"
        return Placement(Method.STORED, "int8", None, reason)
    word = _WEIGHTS.get(scheme, scheme)
    format = formats.get(word)
    if format.scale_type is None:
        return Placement(Method.STORED, word, None)
    block = block_size or format.default_block or (32 if word in KERNEL_FORMATS else None)
    if op in (*MATMULS, "Gather"):
        return Placement(Method.STORED if block is None else Method.PACKED, word, block)
    if format.bits >= 8 and format.default_block is None:
        return Placement(Method.STORED, word, None)
    reason = "" if format.bits >= 8 else f"{format.bits} bits lose too much in {op}: 8 bits a channel"
    return Placement(Method.STORED, "int8", None, reason)


def _unfit(values: list[ir.Value]) -> str:
    """Which of the constants does not fit float16, as a reason; empty if all do."""
    tensors = ((value.name, graph.constant(value)) for value in values)
    names = [name for name, tensor in tensors if tensor is not None and not fits_half(tensor)]
    return f"'{names[0]}' holds numbers too large or too small for float16" if names else ""


def _choose_constant(node: ir.Node, value: ir.Value, recipe: Recipe, opset_note: str) -> Choice:
    name = node.name or ""
    tensor = graph.constant(value)
    elements = 0 if tensor is None else tensor.size
    word = _CASTS.get(recipe.scheme_for(name, node.op_type))
    if word == "bfloat16" and opset_note:
        return _kept(node, [value], elements, opset_note)
    if word == "float16" and (unfit := _unfit([value])):
        return _kept(node, [value], elements, unfit)
    if word is not None:
        return Choice(name, node.op_type, Method.STORED, word, None, elements)
    reason = f"'{value.name}' is a constant of {node.op_type}, which has no quantized form"
    return _kept(node, [value], elements, reason)


def _kept(node: ir.Node, values: list[ir.Value], elements: int, reason: str) -> Choice:
    """Left in float; what was a half float in the file is stored as one again."""
    halves = {value.meta.get(STORED_TYPE) for value in values}
    for dtype, word in ((ir.DataType.FLOAT16, "float16"), (ir.DataType.BFLOAT16, "bfloat16")):
        if halves == {dtype}:
            return Choice(node.name or "", node.op_type, Method.STORED, word, None, elements, reason)
    return Choice(node.name or "", node.op_type, Method.KEEP, None, None, elements, reason)

"""Makes a plan: recipe × target × model → a choice for each node. Measurements come later (`tune.py`)."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq import formats, graph, passengers, targets
from onnxq.bodies import KERNEL_FORMATS
from onnxq.infer import Types
from onnxq.passes.change_float_type import HALVES, ORIGIN, STORED_TYPE
from onnxq.plan import COMPUTING, Choice, Method, Plan
from onnxq.recipe import KEEP, SCHEMES, SPEED_SCHEMES, Recipe
from onnxq.targets import Placement, Target
from onnxq.weights import Weight, are_vectors, fits_half, is_coarse_in_half, other_constants_of, weights_of

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
    for node in graph.nodes(model):
        tables = list(other_constants_of(node))
        if tables and node.name not in choices:
            choices[node.name or ""] = _choose_tables(node, tables, recipe, opset_note)
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
    return Choice(name, node.op_type, wish.method, wish.format, wish.block, elements, wish.reason, _half(values))


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
    tensors = ((value, graph.constant(value)) for value in values)
    names = [_name(value) for value, tensor in tensors if tensor is not None and not fits_half(tensor)]
    return f"'{names[0]}' holds numbers too large or too small for float16" if names else ""


def _choose_tables(node: ir.Node, tables: list[Weight], recipe: Recipe, opset_note: str) -> Choice:
    """For constants that no kernel multiplies by: tables of positions or angles, masks, anchors."""
    name, op, values = node.name or "", node.op_type, [table.value for table in tables]
    elements, half = sum(table.elements for table in tables), _half(values)
    scheme = recipe.scheme_for(name, op)
    if scheme == KEEP:
        return _kept(node, values, elements, KEPT)
    word = _CASTS.get(scheme)
    if word == "bfloat16" and opset_note:
        return _kept(node, values, elements, opset_note)
    if (word is None or word == "float16") and (unfit := _unfit(values)):
        return _kept(node, values, elements, unfit)
    if word is not None:
        return Choice(name, op, Method.STORED, word, None, elements, half=half)
    read = f"'{_name(values[0])}' is a table that {op} reads"
    if half is None and (coarse := next((table for table in tables if is_coarse_in_half(table)), None)):
        reason = f"'{_name(coarse.value)}' is a table that {op} reads, with numbers that float16 would round too much"
        return _kept(node, values, elements, reason)
    bits = 8 if scheme in SPEED_SCHEMES else formats.get(_WEIGHTS.get(scheme, scheme)).bits
    if op == "Add" and bits <= 8 and all(map(are_vectors, tables)):
        return Choice(name, op, Method.STORED, "int8", None, elements, f"{read}: 8 bits a row", half)
    return Choice(name, op, Method.STORED, half or "float16", None, elements, f"{read}: 16 bits", half)


def _kept(node: ir.Node, values: list[ir.Value], elements: int, reason: str) -> Choice:
    """Left in float; what was a half float in the file is stored as one again."""
    half = _half(values)
    method = Method.KEEP if half is None else Method.STORED
    return Choice(node.name or "", node.op_type, method, half, None, elements, reason, half)


def _half(values: list[ir.Value]) -> str | None:
    """The half-precision format in which all of the constants are in the file, if there is one."""
    tensors = [(value, graph.constant(value)) for value in values]
    types = {value.meta.get(STORED_TYPE) or tensor.dtype for value, tensor in tensors if tensor is not None}
    return types.pop().name.lower() if len(types) == 1 and types <= set(HALVES) else None


def _name(value: ir.Value) -> str:
    """What the file calls a constant, or the one that it was computed from."""
    return str(value.meta.get(ORIGIN, value.name))

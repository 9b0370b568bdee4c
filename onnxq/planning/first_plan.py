"""Makes a plan: recipe × target × model → a choice for each node. Measurements come later (`tuning/`)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from onnxq import formats, targets
from onnxq.model import graph
from onnxq.model.origin import HALVES, ORIGIN, STORED_TYPE
from onnxq.model.types import Types
from onnxq.model.weights import (
    Weight,
    are_vectors,
    are_waves,
    fits_half,
    is_coarse_in,
    other_constants_of,
    reads_constant,
    weights_of,
    why_no_weight,
)
from onnxq.plan import COMPUTING, Choice, Method, Plan, in_float
from onnxq.planning import experts, int8_regions, shared_weights, weight_form
from onnxq.planning.attention import with_attention
from onnxq.planning.counts.find_counts import REASON as COUNTS
from onnxq.planning.counts.find_counts import counts_in
from onnxq.planning.counts.growth import REASON as GROWS
from onnxq.planning.counts.growth import growing_in
from onnxq.planning.counts.raw_inputs import REASON as RAW
from onnxq.planning.counts.raw_inputs import raw_in
from onnxq.planning.rows.squares import REASON as LARGE
from onnxq.planning.rows.squares import large_in
from onnxq.recipe import KEEP, Recipe, twin
from onnxq.runtime import known
from onnxq.schemes import INTEGER_SCHEMES, SCHEMES, SPEED_SCHEMES, weight_format
from onnxq.targets import Target

#: Operators that carry most of a network's arithmetic; the ones a scheme's own kernels are for.
MATMULS = ("MatMul", "Gemm")
#: Weights of a channel up to which int8 with a float32 scale saves less than a third of the bytes of float16.
DEPTHWISE = 9
#: Weights from which on blocks of 4 bits take fewer bytes than 8 bits a channel, with the nodes that unpack them.
SPELLED = 1 << 13
#: Operators that take one of several matrices, or rows, out of a weight of three dimensions.
STACKED = ("MoE", "Gather")
KEPT = "kept by a rule of the recipe"


def make_plan(
    model: ir.Model, recipe: Recipe, target: Target, types: Types, *, opset_note: str = "", has_data: bool = False
) -> Plan:
    """A choice for every node that has weights, and for those between int8 convolutions.

    Raises:
        BadRecipe: the target has no form for a number format that was asked for; the message names targets that do.

    Args:
        model: prepared (`passes/prepare.py`), at the opset the target asked for if it could be raised.
        recipe: resolved (`Recipe.resolve`).
        types: of the model's values, as far as they can be inferred.
        opset_note: why the opset could not be raised; empty if it is high enough.
        has_data: whether codes can be chosen by data: kernels of convolutions are then worth 4 bits.
    """
    for scheme in sorted(recipe.schemes - SCHEMES.keys()):
        targets.require_format(target, scheme)
    choices: dict[str, Choice] = {}
    found = {node: list(weights_of(node)) for node in graph.nodes(model)}
    scattered = _in_several_graphs(weight.value for weights in found.values() for weight in weights)
    for node, weights in found.items():
        if weights:
            is_scattered = any(weight.value in scattered for weight in weights)
            choices[node.name or ""] = _choose(node, weights, recipe, target, opset_note, is_scattered)
            if has_data:
                choices[node.name or ""] = _in_four_bits(choices[node.name or ""], weights, recipe)
        elif recipe.scheme == "fp16" and recipe.scheme_for(node.name or "", node.op_type) == KEEP:
            choices[node.name or ""] = Choice(node.name or "", node.op_type, Method.KEEP, reason=KEPT)
    for node in graph.nodes(model):
        tables = list(other_constants_of(node))
        if tables and node.name not in choices:
            choices[node.name or ""] = weight_form.as_asked(
                _choose_tables(node, tables, recipe, opset_note), tables, recipe, target
            )
    choices |= _counting(model, choices, recipe, target, types)
    choices |= _growing(model, choices, types)
    for node in graph.nodes(model) if choices else ():
        reason = why_no_weight(node)
        if (
            reason
            and node.name not in choices
            and recipe.scheme_for(node.name or "", node.op_type) not in (KEEP, "fp16")
        ):
            choices[node.name or ""] = Choice(node.name or "", node.op_type, Method.KEEP, reason=reason)
    plan = shared_weights.reconciled(Plan(recipe.scheme, target.name, choices), model)
    plan = shared_weights.marked(int8_regions.add_to(plan, model, recipe, types), model)
    return with_attention(plan, model, recipe, target, types)


def _counting(
    model: ir.Model, choices: dict[str, Choice], recipe: Recipe, target: Target, types: Types
) -> dict[str, Choice]:
    """Other choices for nodes that compute with places, lengths, steps, large inputs or sums of squares: half precision
    does not hold those."""
    found: dict[str, Choice] = {}
    is_half = recipe.scheme == "fp16" and not target.widens_half
    if not choices:
        return found
    counts, version = counts_in(model, types), graph.opset(model)
    reasons = dict.fromkeys(raw_in(model) if is_half else (), RAW) | dict.fromkeys(counts.nodes, COUNTS)
    for node, reason in reasons.items():
        name = node.name or ""
        given = choices.get(name)
        if given is None and is_half and known.takes_half(node, version):
            found[name] = Choice(name, node.op_type, Method.KEEP, reason=reason)
        elif given is not None and node in counts.exact and given.method is not Method.KEEP:
            values = [each.value for each in (*weights_of(node), *other_constants_of(node))]
            found[name] = _kept(node, values, given.elements, COUNTS)
        elif given is not None and given.method is Method.HALF:
            found[name] = in_float(given, reason)
    for node in large_in(model) if is_half else ():  # without a choice they are left in float all the same
        name = node.name or ""
        given = choices.get(name)
        if given is not None and given.method is Method.HALF and name not in found:
            found[name] = in_float(given, LARGE)
    return found


def _growing(model: ir.Model, choices: dict[str, Choice], types: Types) -> dict[str, Choice]:
    """Float for int8 kernels that would read what grows with an open size: no range holds it at other sizes."""
    static = {name for name, choice in choices.items() if choice.method is Method.STATIC}
    growing = growing_in(model, types) if static else set()
    nodes = [node for node in graph.nodes(model) if node.name in static]
    lost = [node.name or "" for node in nodes if int8_regions.touches(node, growing, regions=False)]
    reason = f"{GROWS}: unpacked when the model loads"
    return {name: in_float(choices[name], reason) for name in lost}


def _in_several_graphs(values: Iterable[ir.Value]) -> set[ir.Value]:
    """Those that nodes of more than one graph read; found for all at once, as one may have as many readers as nodes."""
    return {value for value in set(values) if len({id(use.node.graph) for use in value.uses()}) > 1}


def _choose(
    node: ir.Node, weights: list[Weight], recipe: Recipe, target: Target, opset_note: str, is_scattered: bool
) -> Choice:
    name, elements = node.name or "", sum(weight.elements for weight in weights)
    scheme = recipe.scheme_for(name, node.op_type)
    if scheme == KEEP:
        return _kept(node, [weight.value for weight in weights], elements, KEPT)
    if node.op_type == "Gather" and formats.get(weight_format(scheme)).scale_type and all(map(are_waves, weights)):
        return weight_form.as_asked(_choose_tables(node, weights, recipe, opset_note), weights, recipe, target)
    values = [weight.value for weight in weights]
    asked = Choice(name, node.op_type, Method.KEEP, elements=elements, half=_half(values))
    wish = _wish(scheme, asked, recipe, target)
    if any(len(weight.shape) > 2 and node.op_type in STACKED for weight in weights):
        wish = _of_stacked(wish, node, target)
    is_contrib = wish.method is Method.PACKED and graph.MICROSOFT in target.domains
    if opset_note and wish.method in COMPUTING and not is_contrib:
        wish = in_float(wish, opset_note)
    if wish.method is Method.DYNAMIC and node.op_type == "LSTM" and len(weights) != 2 and not target.has_onnxq_ops:
        wish = in_float(wish, "its weights are not both constant")
    if wish.method is Method.STATIC and reads_constant(node, weights):
        wish = in_float(wish, "what it reads is constant: unpacked when the model loads")
    if wish.method is Method.STATIC and node.op_type in int8_regions.CONVOLUTIONS and _computes_bias(node):
        wish = in_float(wish, "its bias is computed, so no int8 kernel takes it: unpacked when the model loads")
    if wish.method is Method.STATIC and target.has_integer_biases and (number := int8_regions.beyond_integers(node)):
        wish = in_float(wish, f"its bias holds {number}, which is no integer: unpacked when the model loads")
    is_step = wish.method is Method.STATIC and node.op_type == "ConvTranspose" and target.has_onnxq_ops
    if is_step and (reason := _why_no_step(node, weights)):
        wish = in_float(wish, f"{reason}: unpacked when the model loads")
    in_float64 = any(weight.tensor.dtype is ir.DataType.DOUBLE for weight in weights)
    if in_float64 and wish.method in (*COMPUTING, Method.HALF):
        wish = in_float(wish, "computes in float64, which no packed or int8 kernel does")
    if opset_note and formats.get(wish.format or "").code_type.kind not in "iu" and wish.format != "float16":
        return _kept(node, values, elements, opset_note)
    if wish.format == "float16" and (unfit := _unfit(values)):
        return _kept(node, values, elements, unfit)
    if is_scattered:
        wish = _of_several_graphs(wish, node, target)
    for weight in weights:
        wish = target.place(weight, wish if recipe.block_size else target.preferred(weight, wish))
    if wish.method is Method.STORED and wish.format == "int8" and all(_is_depthwise(weight) for weight in weights):
        return wish.to(Method.STORED, "float16", None, "one scale for so few weights: 16 bits cost little more")
    return weight_form.as_asked(wish, weights, recipe, target)


def _in_four_bits(choice: Choice, weights: list[Weight], recipe: Recipe) -> Choice:
    """In the 4 bits that were asked for, where data help to choose codes: without, they lose too much there.

    The kernels of a convolution are flattened, and have to be as long as a block; small ones would only get larger.
    """
    scheme = recipe.scheme_for(choice.node, choice.op)
    if recipe.granularity in ("tensor", "channel") or scheme in (KEEP, *SPEED_SCHEMES):
        return choice
    word = _format_for(scheme, recipe)
    format = formats.get(word)
    if choice.op not in ("Conv", "Attention") or choice.format != "int8":
        return choice
    block = recipe.block_size or format.default_block or 32
    is_long = all(weight.elements // weight.shape[weight.role.channel] >= block for weight in weights)
    is_possible = format.bits == 4 and format.blocks_are_spelled and is_long and choice.elements >= SPELLED
    return choice.to(Method.STORED, word, block) if is_possible else choice


def _of_stacked(wish: Choice, node: ir.Node, target: Target) -> Choice:
    """For matrices of several experts in one weight: blocks, so that none shares a scale with another."""
    block = wish.block or 32
    has_scales = formats.get(wish.format or "").scale_type is not None
    if node.op_type == "MoE" and wish.method is not Method.HALF and has_scales:
        wish = wish.to(Method.PACKED, wish.format, block)
        reason = experts.refusal(node, wish.format or "", block, target)
        if not reason:
            return wish
        wish = in_float(wish, f"{reason}: unpacked when the model loads")
    if wish.method is Method.PACKED:
        wish = in_float(wish, "no kernel looks matrices up: unpacked when the model loads")
    format = formats.get(wish.format or "")
    if format.scale_type is None or (format.bits in (4, 8) and wish.block is not None):
        return wish
    return wish.to(Method.STORED, "int8", 32, wish.reason or "8 bits for each matrix that is looked up")


def _of_several_graphs(wish: Choice, node: ir.Node, target: Target) -> Choice:
    """For weights that, say, both branches of an If read: in a form that is stored once, in the graph around them.

    What a DequantizeLinear reads must lie in its own graph.
    """
    if wish.method is Method.STATIC and node.op_type in MATMULS:
        reason = "subgraphs share its weight, each with ranges of its own: they are measured in every run"
        return wish.to(Method.DYNAMIC, wish.format, wish.block, reason)
    if wish.method is Method.STATIC:
        return in_float(wish, "subgraphs share its weight: unpacked when the model loads")
    if wish.method is Method.PACKED and not target.domains:
        return in_float(wish, "subgraphs share its weight: unpacked when the model loads")
    return wish


def _is_depthwise(weight: Weight) -> bool:
    """Whether a scale a channel covers so few weights that it takes a good part of the bytes."""
    return weight.node.op_type == "Conv" and math.prod(weight.shape[1:]) <= DEPTHWISE


def _why_no_step(node: ir.Node, weights: list[Weight]) -> str:
    """Why a ConvTranspose stays float where regions compute others; empty if it need not."""
    for weight in weights:
        words = int8_regions.spread_words(node, len(weight.shape))
        if words is None:
            return "regions have no step for its attributes"
        outputs = weight.shape[1]
        if words["group"] == 1 and outputs < int8_regions.FEWEST_OUTPUTS:
            return f"no faster in int8 with {outputs} outputs"
    return ""


def _computes_bias(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return bias is not None and graph.constant(bias) is None


def _wish(scheme: str, asked: Choice, recipe: Recipe, target: Target) -> Choice:
    """What a scheme asks for an operator, before the target has its say."""
    op = asked.op
    word = _format_for(scheme, recipe)
    format = formats.get(word)
    if format.scale_type is None:
        return asked.to(Method.HALF if scheme == "fp16" else Method.STORED, word, None)
    if target.rounds_activations(scheme):
        if op in ("Conv", *MATMULS) or op in target.static:
            return _static(asked, word, recipe, target)
        if op in target.dynamic:
            return asked.to(Method.DYNAMIC, "int8", None)
        return asked.to(Method.STORED, "int8", None, f"no static int8 kernel for {op}: unpacked when the model loads")
    if scheme == "w8a8-dynamic":
        if op in (*MATMULS, "LSTM", *target.dynamic):
            return asked.to(Method.DYNAMIC, "int8", None)
        reason = f"no fast dynamic int8 kernel for {op}: unpacked when the model loads"
        return asked.to(Method.STORED, "int8", None, reason)
    block = recipe.block_size or format.default_block or (32 if format.kernel else None)
    if op in (*MATMULS, *STACKED):
        return asked.to(Method.STORED if block is None else Method.PACKED, word, block)
    if format.bits >= 8 and format.default_block is None:
        return asked.to(Method.STORED, word, None)
    reason = "" if format.bits >= 8 else f"{format.bits} bits lose too much in {op}: 8 bits a channel"
    return asked.to(Method.STORED, "int8", None, reason)


def _static(asked: Choice, word: str, recipe: Recipe, target: Target) -> Choice:
    if target.in_blocks and formats.get(word).bits == 4 and asked.op in MATMULS:
        block = recipe.block_size or formats.get(target.in_blocks).default_block
        return asked.to(Method.STATIC, target.in_blocks, block)
    if word in target.static_weights:
        return asked.to(Method.STATIC, word, None)
    is_shorter = formats.get(word).bits < 8  # w8a16 is affine on some targets, and its kernels want zero points of 0
    reason = f"no int8 kernel of {target.name} reads {word}: 8 bits a channel" if is_shorter else ""
    return asked.to(Method.STATIC, "int8", None, reason)


def _format_for(scheme: str, recipe: Recipe) -> str:
    """The number format that a scheme asks for, with zero points or without as the recipe says."""
    word = weight_format(scheme)
    is_open = recipe.symmetric is not None and scheme in SCHEMES and scheme not in INTEGER_SCHEMES
    return twin(word, symmetric=bool(recipe.symmetric)) if is_open else word


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
    format = formats.get(weight_format(scheme))
    word, is_dense = format.name, format.scale_type is None
    if word == "bfloat16" and opset_note:
        return _kept(node, values, elements, opset_note)
    if word != "bfloat16" and (unfit := _unfit(values)):
        return _kept(node, values, elements, unfit)
    shorter = "bfloat16" if word == "bfloat16" else "float16"
    if half is None and (not is_dense or word == "bfloat16"):
        coarse = next((table for table in tables if is_coarse_in(ir.DataType[shorter.upper()], table)), None)
        if coarse is not None:
            read = f"'{_name(coarse.value)}' is a table that {op} reads"
            return _kept(node, values, elements, f"{read}, with numbers that {shorter} would round too much")
    if is_dense:
        return Choice(name, op, Method.STORED, word, None, elements, half=half)
    read = f"'{_name(values[0])}' is a table that {op} reads"
    if op == "Add" and format.bits <= 8 and all(map(are_vectors, tables)):
        return Choice(name, op, Method.STORED, "int8", None, elements, f"{read}: 8 bits a row", half)
    return Choice(name, op, Method.STORED, half or "float16", None, elements, f"{read}: 16 bits", half)


def _kept(node: ir.Node, values: list[ir.Value], elements: int, reason: str) -> Choice:
    """Left in float; what was a half float in the file is stored as one again."""
    half = _half(values)
    if half is not None and all(value.meta.get(STORED_TYPE) in HALVES for value in values):
        return Choice(node.name or "", node.op_type, Method.STORED, half, None, elements, reason, half)
    return Choice(node.name or "", node.op_type, Method.KEEP, None, None, elements, reason, half)


def _half(values: list[ir.Value]) -> str | None:
    """The half-precision format in which all of the constants are in the file, if there is one."""
    tensors = [(value, graph.constant(value)) for value in values]
    types = {value.meta.get(STORED_TYPE) or tensor.dtype for value, tensor in tensors if tensor is not None}
    return types.pop().name.lower() if len(types) == 1 and types <= set(HALVES) else None


def _name(value: ir.Value) -> str:
    """What the file calls a constant, or the one that it was computed from."""
    return str(value.meta.get(ORIGIN, value.name))

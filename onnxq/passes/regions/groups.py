"""Operators between DequantizeLinear and QuantizeLinear that a region has a step for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.passes.regions.forms import Forms, forms_of
from onnxq.passes.regions.group import Group, Tensor, Words, are_equal, is_number, is_quantize, read_of, source_of
from onnxq.passes.regions.makers import MAKERS
from onnxq.passes.regions.rows import Rows, is_read_here, with_floats
from onnxq.planning import chains, int8_regions, moves
from onnxq.planning.absorbed import behind_product
from onnxq.planning.rows import norms
from onnxq.runtime import known

Ranks = Mapping[str, int]
#: What outputs of a product are multiplied by, at most: scales times these stay finite.
MOST_FACTOR = 1e6
#: Times that is asked how tensors lie, until steps ask for what they were found to be.
_ROUNDS = 8


def groups_of(subgraph: ir.Graph, ranks: Ranks, types: Types) -> dict[Tensor, Group]:
    """By the tensor that each makes, every group of this graph, in its order.

    Args:
        ranks: number of dimensions of the values that are quantized, by the names that they had in float.
        types: of all values, as far as they are known.
    """
    forms = Forms()
    for _ in range(_ROUNDS):
        found = _groups_in(subgraph, ranks, types, forms)
        outside = (source for group in found.values() for source in group.sources if isinstance(source, ir.Node))
        quantizes = {*filter(is_quantize, subgraph), *outside}  # of graphs around a branch too
        now = forms_of(found, {node: _rank(node, ranks) for node in quantizes}, forms.images)
        if now == forms:
            return found
        forms = now
    images = frozenset(node for node in subgraph if is_quantize(node))
    return _groups_in(subgraph, ranks, types, Forms(images=images))


def _groups_in(subgraph: ir.Graph, ranks: Ranks, types: Types, forms: Forms) -> dict[Tensor, Group]:
    found: dict[Tensor, Group] = {}
    linked: set[ir.Node] = set()
    for node in subgraph:
        chained = _chain_group(node, ranks, forms)
        if chained is not None:
            found[chained.last] = chained
            linked |= set(chained.nodes)
    for node in subgraph:
        for group in _groups(node, ranks, forms) if node not in linked else ():
            found[group.made] = group
    order = {node: number for number, node in enumerate(subgraph)}
    return dict(sorted(Rows(types, forms).find(subgraph, found).items(), key=lambda each: order[each[1].last]))


def ranks_of(subgraph: ir.Graph, ranks: Ranks) -> dict[str, int]:
    """Of all that is made float again."""
    found: dict[str, int] = {}
    for quantize in subgraph:
        rank = _rank(quantize, ranks) if is_quantize(quantize) else None
        if rank is not None:
            found |= {use.node.outputs[0].name or "": rank for use in quantize.outputs[0].uses()}
    return found


def entry(quantize: Tensor) -> Group:
    """The step that quantizes what comes from outside, or reads it as it is."""
    if isinstance(quantize, ir.Value):
        return read_of(quantize)
    return Group("quantize", (), (quantize,), (), {"in": quantize.inputs[0], **_codes(quantize)})


def is_int8(node: ir.Node, ranks: Ranks) -> bool:
    """Whether what a node makes becomes codes, so that a kernel may make them of codes."""
    if node.domain == own_ops.DOMAIN:  # regions, which convert what they read themselves
        return False
    weight = node.inputs[1] if graph.is_op(node, *known.ROUNDED_UNASKED) else None
    if weight is not None and not graph.is_op(weight.producer(), "DequantizeLinear"):
        return False  # it stays in float, whatever becomes of its result
    outputs = [int8_regions.final_output(node)] if len(node.outputs) == 1 else list(node.outputs)
    for use in (use for out in outputs for use in out.uses()):
        is_linked = node.op_type in chains.FUNCTIONS | chains.ORDERS and use.node.op_type in chains.FUNCTIONS
        if is_quantize(use.node) or (is_linked and is_int8(use.node, ranks)):
            return True
    return bool(_groups(node, ranks, Forms()))


def rank_of(quantize: Tensor, ranks: Ranks) -> int | None:
    """Of codes."""
    return _rank(quantize, ranks) if isinstance(quantize, ir.Node) else None


def _chain_group(quantize: ir.Node, ranks: Ranks, forms: Forms) -> Group | None:
    """The chain of functions, or of changes of shape and order, whose result is quantized here."""
    if not is_quantize(quantize) or quantize.inputs[0] is None or not is_read_here(quantize):
        return None
    chain = chains.chain_to(quantize.inputs[0])
    source = None if chain is None else source_of(chain.root)
    if chain is None or source is None or graph.only_consumer(quantize.inputs[0]) is not quantize:
        return None
    rank, dequantize = _rank(source, ranks), chain.root.producer()
    assert dequantize is not None
    nodes = (*chain.nodes, quantize)
    if any(node.graph is not quantize.graph for node in nodes) or rank not in moves.RANKS:
        return None
    reads_stack = forms.is_stack(source)
    if chain.is_function:
        fits = chain.keeps_shape(rank) and (chain.channels == 1 or not reads_stack)
        codes = _codes(quantize)
        return Group("table", (dequantize,), nodes, (source,), codes, chain, reads_stack) if fits else None
    move = moves.order_of(chain, rank)
    if move is None or not are_equal(quantize, source):
        return None
    words: Words = {**move.words, **({"stack": 1} if forms.is_stack(quantize) else {})}
    return Group(move.does, (dequantize,), nodes, (source,), words, reads_stack=reads_stack)


def _groups(node: ir.Node, ranks: Ranks, forms: Forms) -> list[Group]:
    if moves.is_move(node):
        return _move_groups(node, ranks, forms)
    group = _group(node, ranks, forms)
    return [] if group is None else [group]


def _move_groups(node: ir.Node, ranks: Ranks, forms: Forms) -> list[Group]:
    """A step for each output whose codes are those that are read, or lie between them."""
    source = source_of(node.inputs[0])
    rank = None if source is None else _rank(source, ranks)
    made = moves.moves_of(node, rank)
    reads_stack = source is not None and forms.is_stack(source)
    if made is not None and reads_stack:
        stacked = [moves.in_stack(move, rank) for move in made]
        made = [move for move in stacked if move is not None]
        made = made if len(made) == len(stacked) else None
    dequantize = graph.producer(node.inputs[0])
    if made is None or source is None or dequantize is None:
        return []
    found = []
    for out, move in zip(node.outputs, made, strict=True):
        quantize = graph.only_consumer(out)
        if quantize is None or not is_quantize(quantize) or quantize.graph is not node.graph:
            continue
        if is_read_here(quantize) and (move.makes_codes or are_equal(quantize, source)):
            words = {**move.words, **(_codes(quantize) if move.makes_codes else {})}
            found.append(Group(move.does, (dequantize,), (node, quantize), (source,), words, None, reads_stack))
    return found


def _group(node: ir.Node, ranks: Ranks, forms: Forms) -> Group | None:
    make = MAKERS.get(node.op_type) if node.domain == "" else None
    made = None if make is None else make(node)
    if made is None:
        return None
    does, operands, words = made
    sources = [source_of(value) for value in operands]
    inner = [value.producer() for value in node.inputs if value is not None]
    read = tuple(each for each in inner if graph.is_op(each, "DequantizeLinear") and each is not None)
    if any(source is None for source in sources):
        return None
    found = tuple(source for source in sources if source is not None)
    if does == "gemm":
        return _product(Group(does, read, (node,), found, words), node, ranks, forms)
    if does not in ("conv", "conv_transpose") and not _have_one_rank(found, ranks):
        return None
    end, reads_stack = int8_regions.final_output(node), forms.is_stack(found[0])
    quantize = _quantize_behind(end)
    if quantize is None:
        return None
    axis = graph.attribute_int(node, "axis", 0)
    if does == "concat" and not _set_axis(words, axis, _rank(found[0], ranks), reads_stack):
        return None
    if does == "max_pool" and not are_equal(quantize, found[0]):
        return None
    if node.op_type == "ReduceMean" and not moves.is_over_pixels(node, _rank(found[0], ranks)):
        return None
    middle = [] if end is node.outputs[0] else [end.producer()]
    activation = [each for each in middle if each is not None]
    bounds = _bounds(activation[0]) if activation else {}
    if bounds is None:
        return None
    codes = {} if does == "max_pool" else _codes(quantize)
    nodes = (node, *activation, quantize)
    return Group(does, read, nodes, found, {**words, **bounds, **codes}, reads_stack=reads_stack)


def _product(plain: Group, node: ir.Node, ranks: Ranks, forms: Forms) -> Group | None:
    """A product whose result, or what a Relu or Clip leaves of it, is quantized; or else the one that makes float.

    Args:
        plain: the step for `node` alone, without the Add that is its bias.
    """
    source = plain.sources[0]
    rank = 2 if node.op_type == "Gemm" else rank_of(source, ranks)
    assert isinstance(source, ir.Node)
    if rank not in moves.RANKS or (rank > 2 and not forms.may_be_stack(source)):
        return None
    parts = behind_product(node)
    added = [each for each in parts if each.op_type == "Add"]
    if added and "bias" not in plain.words:
        parts = added = []  # which is float
    biases = [value.producer() for each in added for value in each.inputs if value is not None]
    read = [each for each in biases if each is not None and graph.is_op(each, "DequantizeLinear")]
    plain = dataclasses.replace(
        plain,
        operands=(*plain.operands, *read),
        nodes=(node, *added),
        reads_stack=forms.is_stack(source),
    )
    quantize = _quantize_behind([node, *parts][-1].outputs[0])
    bounds: Words | None = {}
    for activation in parts[len(added) :]:
        bounds = _bounds(activation)
    if quantize is None or bounds is None or (rank > 2 and not forms.may_be_stack(quantize)):
        return with_floats(_with_factor(plain))
    words = {**plain.words, **bounds, **_codes(quantize)}
    return dataclasses.replace(plain, does="product", nodes=(node, *parts, quantize), words=words)


def _with_factor(product: Group) -> Group:
    """With the numbers that its outputs are multiplied by, as a LayerScale does (Touvron et al. 2021)."""
    nodes = list(product.nodes)
    factor, _ = norms.with_vector(nodes[-1], "Mul", nodes)
    weight, tensor = product.words["weight"], graph.constant(factor)
    if tensor is None or not isinstance(weight, ir.Value) or weight.shape is None:
        return product
    outputs = weight.shape.numpy()[0 if product.words.get("transposed") else 1]
    if tensor.size != outputs or np.abs(tensor.numpy()).max() > MOST_FACTOR:
        return product
    return dataclasses.replace(product, nodes=tuple(nodes), words={**product.words, "factor": factor})


def _quantize_behind(end: ir.Value) -> ir.Node | None:
    """What alone reads this value, makes codes of it, and has readers in the same graph."""
    quantize, maker = graph.only_consumer(end), end.producer()
    is_int8 = is_quantize(quantize) and quantize is not None and end is quantize.inputs[0]
    if quantize is None or not is_int8 or maker is None or quantize.graph is not maker.graph:
        return None
    return quantize if is_read_here(quantize) else None


def _codes(quantize: ir.Node) -> Words:
    return {"scale": quantize.inputs[1], "zero": quantize.inputs[2]}


def _bounds(activation: ir.Node) -> Words | None:
    if activation.op_type == "Relu":
        return {"relu": 1}
    given = [*activation.inputs[1:], None, None][:2]
    if any(value is not None and not is_number(value, ir.DataType.FLOAT) for value in given):
        return None
    if {"min", "max"} & set(activation.attributes):  # of older operators
        return None
    tensors = [graph.constant(value) for value in given]
    if any(tensor is not None and np.isnan(tensor.numpy()).any() for tensor in tensors):
        return None
    return {"low": given[0], "high": given[1]}


def _have_one_rank(sources: tuple[ir.Node, ...], ranks: Ranks) -> bool:
    """Whether all codes are known to have the same number of dimensions, one that regions have. Weights say it of what
    they are multiplied with."""
    return {_rank(quantize, ranks) for quantize in sources} in ({2}, {3}, {4})


def _rank(quantize: ir.Node, ranks: Ranks) -> int | None:
    """Of codes. A value that a graph returns has left its name to the one that is made float again."""
    values = [quantize.inputs[0], *(use.node.outputs[0] for use in quantize.outputs[0].uses())]
    return next((ranks[value.name or ""] for value in values if value is not None and value.name in ranks), None)


def _set_axis(words: Words, axis: int, rank: int | None, is_stack: bool) -> bool:
    place = moves.place_of(axis, rank, is_stack)
    if place is not None and place != 1:
        words["axis"] = place
    return place is not None

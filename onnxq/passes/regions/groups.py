"""Operators between DequantizeLinear and QuantizeLinear that a region has a step for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.passes.regions.group import Group, Tensor, Words, are_equal, is_number, is_quantize, source_of
from onnxq.passes.regions.makers import MAKERS
from onnxq.planning import chains, int8_regions, moves
from onnxq.runtime import known

Ranks = Mapping[str, int]


def groups_of(subgraph: ir.Graph, ranks: Ranks) -> dict[Tensor, Group]:
    """By last node, every group of this graph, in its order.

    Args:
        ranks: number of dimensions of the values that are quantized, by the names that they had in float.
    """
    found: dict[Tensor, Group] = {}
    linked: set[ir.Node] = set()
    for node in subgraph:
        chained = _chain_group(node, ranks)
        if chained is not None:
            found[chained.last] = chained
            linked |= set(chained.nodes)
    for node in subgraph:
        for group in _groups(node, ranks) if node not in linked else ():
            found[group.last] = group
    return {node: found[node] for node in subgraph if node in found}


def ranks_of(subgraph: ir.Graph, ranks: Ranks) -> dict[str, int]:
    """Of all that is made float again."""
    found: dict[str, int] = {}
    for quantize in subgraph:
        rank = _rank(quantize, ranks) if is_quantize(quantize) else None
        if rank is not None:
            found |= {use.node.outputs[0].name or "": rank for use in quantize.outputs[0].uses()}
    return found


def entry(quantize: Tensor) -> Group:
    """The step that quantizes what comes from outside."""
    assert isinstance(quantize, ir.Node)
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
    return bool(_groups(node, ranks))


def _chain_group(quantize: ir.Node, ranks: Ranks) -> Group | None:
    """The chain of functions, or of changes of shape and order, whose result is quantized here."""
    if not is_quantize(quantize) or quantize.inputs[0] is None or not _is_read_here(quantize):
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
    if chain.is_function:
        fits = chain.keeps_shape(rank)
        return Group("table", (dequantize,), nodes, (source,), _codes(quantize), chain) if fits else None
    move = moves.order_of(chain, rank)
    if move is None or not are_equal(quantize, source):
        return None
    return Group(move.does, (dequantize,), nodes, (source,), dict(move.words))


def _groups(node: ir.Node, ranks: Ranks) -> list[Group]:
    if moves.is_move(node):
        return _move_groups(node, ranks)
    group = _group(node, ranks)
    return [] if group is None else [group]


def _move_groups(node: ir.Node, ranks: Ranks) -> list[Group]:
    """A step for each output whose codes are those that are read, or lie between them."""
    source = source_of(node.inputs[0])
    made = None if source is None else moves.moves_of(node, _rank(source, ranks))
    dequantize = None if node.inputs[0] is None else node.inputs[0].producer()
    if made is None or source is None or dequantize is None:
        return []
    found = []
    for out, move in zip(node.outputs, made, strict=True):
        quantize = graph.only_consumer(out)
        if quantize is None or not is_quantize(quantize) or quantize.graph is not node.graph:
            continue
        if _is_read_here(quantize) and (move.makes_codes or are_equal(quantize, source)):
            words = {**move.words, **(_codes(quantize) if move.makes_codes else {})}
            found.append(Group(move.does, (dequantize,), (node, quantize), (source,), words))
    return found


def _is_read_here(quantize: ir.Node) -> bool:
    """Whether codes become float again in the same graph, by whoever reads them."""
    readers = [use.node for use in quantize.outputs[0].uses()]
    is_plain = all(reader.op_type == "DequantizeLinear" and reader.graph is quantize.graph for reader in readers)
    return is_plain and not quantize.outputs[0].is_graph_output()


def _group(node: ir.Node, ranks: Ranks) -> Group | None:
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
    if does not in ("conv", "conv_transpose", "gemm") and not _have_one_rank(found, ranks):
        return None
    end = _end(node)
    quantize = graph.only_consumer(end)
    is_int8 = is_quantize(quantize) and quantize is not None and end is quantize.inputs[0]
    if quantize is None or not is_int8 or quantize.graph is not node.graph or not _is_read_here(quantize):
        return Group(does, read, (node,), found, words) if does == "gemm" else None
    if does == "gemm":  # whose result, or what a Relu or Clip leaves of it, somebody reads as codes
        does = "product"
    if does == "concat" and not _set_axis(words, graph.attribute_int(node, "axis", 0), _rank(found[0], ranks)):
        return None
    if does == "max_pool" and not are_equal(quantize, found[0]):
        return None
    if node.op_type == "ReduceMean" and not moves.is_over_pixels(node, _rank(found[0], ranks)):
        return None
    middle = [] if end is node.outputs[0] else [end.producer()]
    activation = [each for each in middle if each is not None]
    bounds = _bounds(activation[0]) if activation else {}
    if bounds is None:
        return Group("gemm", read, (node,), found, words) if does == "product" else None
    codes = {} if does == "max_pool" else _codes(quantize)
    return Group(does, read, (node, *activation, quantize), found, {**words, **bounds, **codes})


def _end(node: ir.Node) -> ir.Value:
    """What a kernel makes of `node`: behind the Relu or Clip that it computes too."""
    out = node.outputs[0]
    follower = graph.only_consumer(out) if node.op_type == "Gemm" else None
    if follower is None or not graph.is_op(follower, "Relu", "Clip") or follower.graph is not node.graph:
        return int8_regions.final_output(node)
    return follower.outputs[0] if follower.inputs[0] is out else out


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


def _set_axis(words: Words, axis: int, rank: int | None) -> bool:
    place = moves.place_of(axis, rank)
    if place is not None and place != 1:
        words["axis"] = place
    return place is not None

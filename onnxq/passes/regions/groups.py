"""Operators between DequantizeLinear and QuantizeLinear that a region has a step for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.passes.regions.group import Group, Tensor, Words
from onnxq.planning import chains, int8_regions, moves

#: Sums of so many products of codes and weights fit int32, with a bias as large.
MOST_PRODUCTS = 1 << 15
#: Blocks of 2 KB that the weight of a grouped convolution may become: those of small groups are mostly zeros.
MOST_BLOCKS = 1 << 15
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
    outputs = [int8_regions.final_output(node)] if len(node.outputs) == 1 else list(node.outputs)
    for use in (use for out in outputs for use in out.uses()):
        is_linked = node.op_type in chains.FUNCTIONS | chains.ORDERS and use.node.op_type in chains.FUNCTIONS
        if is_quantize(use.node) or (is_linked and is_int8(use.node, ranks)):
            return True
    return bool(_groups(node, ranks))


def is_quantize(node: ir.Node | None) -> bool:
    """Whether this makes codes 0…255 by one constant scale, of float32."""
    if not graph.is_op(node, "QuantizeLinear") or node is None or len(node.inputs) != 3:
        return False
    value, scale, zero = node.inputs
    typed = value is not None and value.dtype in (ir.DataType.FLOAT, None)  # which the scale says too
    return typed and _is_number(scale, ir.DataType.FLOAT) and _is_number(zero, ir.DataType.UINT8)


def source_of(value: ir.Value | None) -> ir.Node | None:
    """The QuantizeLinear whose codes `value` is made of, by a DequantizeLinear of the same scale."""
    dequantize = None if value is None else value.producer()
    if not graph.is_op(dequantize, "DequantizeLinear") or dequantize is None:
        return None
    quantize = None if dequantize.inputs[0] is None else dequantize.inputs[0].producer()
    if not is_quantize(quantize) or quantize is None:
        return None
    return quantize if len(dequantize.inputs) == 3 and _are_equal(quantize, dequantize) else None


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
    if move is None or not _are_equal(quantize, source):
        return None
    return Group(move.does, (dequantize,), nodes, (source,), dict(move.words))


def _groups(node: ir.Node, ranks: Ranks) -> list[Group]:
    if moves.is_move(node):
        return _move_groups(node, ranks)
    group = _group(node, ranks)
    return [] if group is None else [group]


def _move_groups(node: ir.Node, ranks: Ranks) -> list[Group]:
    """A step for each output whose codes are those that are read."""
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
        if _is_read_here(quantize) and _are_equal(quantize, source):
            found.append(Group(move.does, (dequantize,), (node, quantize), (source,), dict(move.words)))
    return found


def _is_read_here(quantize: ir.Node) -> bool:
    """Whether codes become float again in the same graph, by whoever reads them."""
    readers = [use.node for use in quantize.outputs[0].uses()]
    is_plain = all(reader.op_type == "DequantizeLinear" and reader.graph is quantize.graph for reader in readers)
    return is_plain and not quantize.outputs[0].is_graph_output()


def _group(node: ir.Node, ranks: Ranks) -> Group | None:
    make = _MAKERS.get(node.op_type) if node.domain == "" else None
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
    if does not in ("conv", "gemm") and not _have_one_rank(found, ranks):
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
    if does == "max_pool" and not _are_equal(quantize, found[0]):
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
    if any(value is not None and not _is_number(value, ir.DataType.FLOAT) for value in given):
        return None
    if {"min", "max"} & set(activation.attributes):  # of older operators
        return None
    return {"low": given[0], "high": given[1]}


def _is_number(value: ir.Value | None, dtype: ir.DataType) -> bool:
    tensor = graph.constant(value)
    return tensor is not None and tensor.dtype is dtype and tensor.size == 1


def _is_of(value: ir.Value | None, dtype: ir.DataType) -> ir.Node | None:
    """The DequantizeLinear that makes `value` of constants of this type without offsets."""
    node = None if value is None else value.producer()
    if not graph.is_op(node, "DequantizeLinear") or node is None or "block_size" in node.attributes:
        return None
    codes, scale = graph.constant(node.inputs[0]), graph.constant(node.inputs[1])
    zeros = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if codes is None or scale is None or codes.dtype is not dtype or scale.dtype is not ir.DataType.FLOAT:
        return None
    return node if zeros is None or not np.any(zeros.numpy()) else None


# --- operators: the step's word, the values that it reads as codes, what it says besides ------------------------------

_Made = tuple[str, list[ir.Value | None], Words] | None


def _weighted(node: ir.Node, channel: int) -> Words | None:
    """Weight and bias of a Conv or Gemm whose outputs lie along axis `channel` of the weight."""
    weight = _is_of(node.inputs[1], ir.DataType.INT8)
    if weight is None or len(weight.inputs[0].shape or ()) not in (2, 3, 4):  # type: ignore[union-attr]
        return None
    scale = graph.constant(weight.inputs[1])
    assert scale is not None
    if scale.size > 1 and graph.attribute_int(weight, "axis", 1) != channel:
        return None
    words: Words = {"weight": weight.inputs[0], "weight_scale": weight.inputs[1]}
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _is_of(node.inputs[2], ir.DataType.INT32)
        if bias is None or not _is_scaled(bias, weight, node.inputs[0]):
            return None
        words["bias"] = bias.inputs[0]
    return words


def _is_scaled(bias: ir.Node, weight: ir.Node, x: ir.Value | None) -> bool:
    """Whether a bias counts in steps of the sums: the scale of x times that of the weight, as float32 rounds it."""
    quantize = source_of(x)
    tensors = [] if quantize is None else [graph.constant(each.inputs[1]) for each in (quantize, weight, bias)]
    if not tensors or any(tensor is None for tensor in tensors):
        return False
    of_x, of_weight, of_bias = (tensor.numpy().astype(np.float64).ravel() for tensor in tensors if tensor is not None)
    return bool(np.allclose(of_bias, of_x * of_weight, rtol=1e-6, atol=0.0))


def _conv(node: ir.Node) -> _Made:
    words, shape = _weighted(node, 0), padding(node)
    weight = None if words is None else words["weight"]
    if words is None or shape is None or not isinstance(weight, ir.Value) or weight.shape is None:
        return None
    dims = weight.shape.numpy()
    if len(dims) not in (3, 4) or int(np.prod(dims[1:])) > MOST_PRODUCTS:
        return None
    group = graph.attribute_int(node, "group", 1)
    outputs, taps = int(dims[0]) // max(group, 1), int(np.prod(dims[2:]))
    is_padded = group > 1 and not (outputs == 1 and dims[1] == 1)
    if is_padded and blocks_of(group, outputs, int(dims[1]), taps, 1) > MOST_BLOCKS:
        return None
    return "conv", [node.inputs[0]], {**words, **shape, "group": group}


def blocks_of(group: int, outputs: int, inputs: int, taps: int, width: int) -> int:
    """Blocks that the weight of a grouped convolution becomes, where small groups are computed together
    (`custom_ops/region/stage.cc`).

    Args:
        outputs: of a group, as `inputs`, whose elements are `width` bytes.
    """
    fitting = (n for n in range(1, 33) if group % n == 0 and n * outputs <= 32 and n * inputs * width <= 64)
    together = max(fitting, default=1)
    return group // together * -(-outputs * together // 32) * taps * -(-inputs * together * width // 64)


def _gemm(node: ir.Node) -> _Made:
    turned = graph.attribute_int(node, "transB", 0)
    words = _weighted(node, 0 if turned else 1)
    others = [
        graph.attribute_int(node, "transA", 0) == 0,
        *(graph.attribute_float(node, x, 1.0) == 1.0 for x in ("alpha", "beta")),
    ]
    if words is None or not all(others):
        return None
    weight = words["weight"]
    assert isinstance(weight, ir.Value) and weight.shape is not None
    dims = weight.shape.numpy()
    if len(dims) != 2 or dims[turned] > MOST_PRODUCTS:
        return None
    return "gemm", [node.inputs[0]], {**words, "transposed": turned}


def _binary(node: ir.Node) -> _Made:
    return node.op_type.lower(), list(node.inputs), {}


def _have_one_rank(sources: tuple[ir.Node, ...], ranks: Ranks) -> bool:
    """Whether all codes are known to have the same number of dimensions, one that regions have. Weights say it of what
    they are multiplied with."""
    return {_rank(quantize, ranks) for quantize in sources} in ({2}, {3}, {4})


def _rank(quantize: ir.Node, ranks: Ranks) -> int | None:
    """Of codes. A value that a graph returns has left its name to the one that is made float again."""
    values = [quantize.inputs[0], *(use.node.outputs[0] for use in quantize.outputs[0].uses())]
    return next((ranks[value.name or ""] for value in values if value is not None and value.name in ranks), None)


def _are_equal(some: ir.Node, others: ir.Node) -> bool:
    """Whether two nodes have the same constants as scale and zero point."""
    return all(
        a is b or _same(graph.constant(a), graph.constant(b))
        for a, b in zip(some.inputs[1:3], others.inputs[1:3], strict=True)
    )


def _same(a: ir.TensorProtocol | None, b: ir.TensorProtocol | None) -> bool:
    return a is not None and b is not None and a.dtype is b.dtype and bool(np.array_equal(a.numpy(), b.numpy()))


def _max_pool(node: ir.Node) -> _Made:
    shape = padding(node)
    is_plain = len(node.outputs) == 1 or not node.outputs[1].uses()
    if shape is None or not is_plain:
        return None
    return "max_pool", [node.inputs[0]], {**shape, "ceil": graph.attribute_int(node, "ceil_mode", 0)}


def _average_pool(node: ir.Node) -> _Made:
    shape = padding(node)
    if shape is None or graph.attribute_int(node, "ceil_mode", 0) or shape.pop("dilations", [1, 1]) != [1, 1]:
        return None
    counts = graph.attribute_int(node, "count_include_pad", 0)
    return "average_pool", [node.inputs[0]], {**shape, "counts_pads": counts}


def _global_average_pool(node: ir.Node) -> _Made:
    return "global_average_pool", [node.inputs[0]], {}


def _reduce_mean(node: ir.Node) -> _Made:
    keeps = graph.attribute_int(node, "keepdims", 1)
    return "global_average_pool", [node.inputs[0]], {} if keeps else {"keeps": 0}


def _concat(node: ir.Node) -> _Made:
    return "concat", list(node.inputs), {}


def _set_axis(words: Words, axis: int, rank: int | None) -> bool:
    place = moves.place_of(axis, rank)
    if place is not None and place != 1:
        words["axis"] = place
    return place is not None


def padding(node: ir.Node) -> Words | None:
    """Kernel, strides, dilations and pads of one or two dimensions, as two."""
    found: Words = {}
    for name, given in (("kernel", "kernel_shape"), ("strides", "strides"), ("dilations", "dilations")):
        values = list(node.attributes.get_ints(given, []))
        if len(values) > 2:
            return None
        if values and not (name == "kernel" and node.op_type == "Conv"):  # which the weight has
            found[name] = [1, *values][-2:]
    auto = graph.attribute_string(node, "auto_pad", "NOTSET")
    if auto in _SAME:
        # Of one dimension, the other has one pixel, and none are missing.
        return {**found, "same": _SAME[auto]}
    pads = list(node.attributes.get_ints("pads", [])) if auto == "NOTSET" else []
    if len(pads) not in (0, 2, 4) or any(pad < 0 for pad in pads):
        return None
    if pads:
        found["pads"] = pads if len(pads) == 4 else [0, pads[0], 0, pads[1]]
    return found


_SAME = {"SAME_UPPER": 1, "SAME_LOWER": 2}
_MAKERS: dict[str, Callable[[ir.Node], _Made]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "Add": _binary,
    "Sub": _binary,
    "Mul": _binary,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "ReduceMean": _reduce_mean,
    "Concat": _concat,
}

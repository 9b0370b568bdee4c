"""Float operators that a bf16 region has a step for: they hang on convolutions whose weights are stored in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.model.weights import MIN_ELEMENTS
from onnxq.passes.regions.bf16.group_norms import group_norm
from onnxq.passes.regions.bf16.pixels import Pixels, constant_of, pixels_of, stored_in_half
from onnxq.passes.regions.group import Group, NumberGroup, Tensor, Words, read_of
from onnxq.passes.regions.makers import MOST_BLOCKS, blocks_of, fits_phases, padding
from onnxq.planning import int8_regions, moves

#: As in `custom_ops/region/bf16_kernel.h`.
RELU, CLIP, LEAKY_RELU, HARD_SIGMOID, SIGMOID, TANH, SILU, HARD_SWISH = range(1, 9)


def entry(value: Tensor) -> Group:
    """The step that rounds what comes from outside."""
    assert isinstance(value, ir.Value)
    return read_of(value)


def groups_of(
    subgraph: ir.Graph, types: Types, allowed: frozenset[str], counting: frozenset[str] = frozenset()
) -> dict[Tensor, Group]:
    """By the value that it makes, every group of this graph, in its order; no node is in two of them.

    Args:
        types: types and shapes of values, by their names.
        allowed: names of convolutions that may compute in bfloat16; weights of small ones may be in float32.
        counting: names of nodes that must not.
    """
    found: dict[Tensor, Group] = {}
    taken: set[ir.Node] = set()
    order = {node: number for number, node in enumerate(subgraph)}
    pixels = pixels_of(subgraph)
    for node in subgraph:
        if node in taken:
            continue
        group = _group(node, types, order, pixels, allowed)
        for each in _move_groups(node, types) if group is None else [group]:
            if not counting.isdisjoint(inner.name or "" for inner in each.nodes):
                continue
            found[each.made] = each
            taken |= set(each.nodes)
    return found


def _group(
    node: ir.Node, types: Types, order: dict[ir.Node, int], pixels: Pixels, allowed: frozenset[str]
) -> Group | None:
    make = _MAKERS.get(node.op_type) if node.domain == "" else None
    made = None if make is None else make(node, types)
    if graph.is_op(node, "Reshape"):
        made = group_norm(node, types)
        made = made if made is None else replace(made, nodes=tuple(sorted(made.nodes, key=order.__getitem__)))
    if graph.is_op(node, *int8_regions.CONVOLUTIONS):
        make_it = _conv if node.op_type == "Conv" else _conv_transpose
        made = make_it(node) if node.name in allowed else None
    if made is None or not _fits(made, types):
        return None
    if made.does == "conv":
        made = _with_sum(made, types, order, pixels)
    return _with_activation(made) if made.does in _ACTIVATED and "act" not in made.words else made


#: Steps that an activation may be part of.
_ACTIVATED = ("conv", "conv_transpose", "add", "mul", "affine", "instance_norm")


def _move_groups(node: ir.Node, types: Types) -> list[Group]:
    """A step for each output that has readers, of an operator that moves numbers and leaves them what they are."""
    x = node.inputs[0] if node.inputs else None
    made = None if x is None else moves.moves_of(node, types.of(x).rank)
    if made is None or x is None:
        return []
    found = [NumberGroup(move.does, (), (node,), (x,), dict(move.words), output=i) for i, move in enumerate(made)]
    is_read = [out.uses() or out.is_graph_output() for out in node.outputs]
    return [group for group, read in zip(found, is_read, strict=True) if read and _fits(group, types)]


def _fits(group: Group, types: Types) -> bool:
    """Whether all that it reads is float32, of one rank that regions have."""
    values = [value for value in group.sources if isinstance(value, ir.Value)]
    ranks = {types.of(value).rank for value in values}
    is_plain = all(types.of(value).dtype is ir.DataType.FLOAT and graph.constant(value) is None for value in values)
    return is_plain and ranks in ({2}, {3}, {4})


def _with_sum(group: Group, types: Types, order: dict[ir.Node, int], pixels: Pixels) -> Group:
    """With the Add of another tensor of the same shape behind a convolution, where it is the last that is added."""
    end = group.last.outputs[0]
    add = graph.only_consumer(end)
    if add is None or not graph.is_op(add, "Add") or add not in order or not _same_shape(add, types, pixels):
        return group
    other = next((value for value in add.inputs if value is not end), None)
    producer = graph.producer(other)
    is_before = producer is None or order.get(producer, len(order)) < order[group.nodes[0]]
    if other is None or graph.constant(other) is not None or not is_before:
        return group
    return replace(group, nodes=(*group.nodes, add), sources=(*group.sources, other))


def _same_shape(add: ir.Node, types: Types, pixels: Pixels) -> bool:
    a, b = add.inputs
    if a is None or b is None or a is b or types.of(a).dtype is not types.of(b).dtype:
        return False
    one, other = types.of(a).shape, types.of(b).shape
    if one is None or other is None or len(one) != len(other):
        return False
    same_pixels = pixels.get(a) is not None and pixels.get(a) == pixels.get(b)
    return one[1] == other[1] is not None and (same_pixels or (one == other and None not in one))


def _with_activation(group: Group) -> Group:
    found = activation_behind(group.last)
    return group if found is None else _followed(group, *found)


def activation_behind(node: ir.Node) -> tuple[list[ir.Node], Words] | None:
    """The nodes that make an activation of the output of `node`, and what a step says of it; None where others read it,
    or no step knows the activation."""
    end = node.outputs[0]
    readers = [use.node for use in end.uses()]
    if end.is_graph_output() or any(reader.graph is not node.graph for reader in readers):
        return None
    if len(readers) == 1:
        words = _activation(readers[0])
        return None if words is None else (readers, words)
    if len(readers) != 2:
        return None
    # x · sigmoid(x), and x · hard_sigmoid(x) as it was spelt before there was a HardSwish.
    gate, product = sorted(readers, key=lambda node: node.op_type == "Mul")
    is_gated = product.op_type == "Mul" and set(product.inputs) == {end, gate.outputs[0]}
    if not is_gated or graph.only_consumer(gate.outputs[0]) is not product or product.domain or gate.domain:
        return None
    if gate.op_type == "Sigmoid":
        return [gate, product], {"act": SILU}
    if gate.op_type == "HardSigmoid" and _hard_sigmoid(gate)[0] == np.float32(1 / 6) and _hard_sigmoid(gate)[1] == 0.5:
        return [gate, product], {"act": HARD_SWISH}
    return None


def _followed(group: Group, nodes: list[ir.Node], words: Words) -> Group:
    return replace(group, nodes=(*group.nodes, *nodes), words={**group.words, **words})


def _hard_sigmoid(node: ir.Node) -> tuple[np.float32, np.float32]:
    return np.float32(graph.attribute_float(node, "alpha", 0.2)), np.float32(graph.attribute_float(node, "beta", 0.5))


def _activation(node: ir.Node) -> Words | None:
    """What a step says of an operator that changes each number alone."""
    if node.domain:
        return None
    if node.op_type in _PLAIN:
        return {"act": _PLAIN[node.op_type]}
    if node.op_type == "LeakyRelu":
        return {"act": LEAKY_RELU, "low": _number(graph.attribute_float(node, "alpha", 0.01))}
    if node.op_type == "HardSigmoid":
        alpha, beta = _hard_sigmoid(node)
        return {"act": HARD_SIGMOID, "low": _number(alpha), "high": _number(beta)}
    if node.op_type != "Clip" or {"min", "max"} & set(node.attributes):
        return None
    bounds: list[NDArray | None] = []
    for index in (1, 2):
        value = node.inputs[index] if index < len(node.inputs) else None
        array = constant_of(value)
        if value is not None and (array is None or array.size != 1 or math.isnan(float(array.item()))):
            return None
        bounds.append(None if array is None else array.reshape(()))
    return {"act": CLIP, "low": bounds[0], "high": bounds[1]}


_PLAIN = {"Relu": RELU, "Sigmoid": SIGMOID, "Tanh": TANH, "HardSwish": HARD_SWISH}


def _number(value: float | np.float32) -> NDArray:
    return np.array(value, np.float32)


# --- operators --------------------------------------------------------------------------------------------------------


def _of(does: str, node: ir.Node, sources: list[ir.Value | None], words: Words) -> Group | None:
    casts = [value.producer() for value in node.inputs if value is not None and stored_in_half(value) is not None]
    read = tuple(cast for cast in casts if cast is not None)
    given = tuple(value for value in sources if value is not None)
    return NumberGroup(does, read, (node,), given, words) if len(given) == len(sources) else None


def _weight(node: ir.Node) -> tuple[Words, list[int]] | None:
    """Weight and bias of a convolution as a step says them, and the sizes of the weight."""
    weight = stored_in_half(node.inputs[1])
    if weight is None:
        tensor = graph.constant(node.inputs[1])
        is_small = tensor is not None and tensor.dtype is ir.DataType.FLOAT and tensor.size < MIN_ELEMENTS
        weight = node.inputs[1] if is_small else None
    if weight is None or weight.shape is None:
        return None
    dims = [int(dim) for dim in weight.shape.numpy()]
    if len(dims) not in (3, 4) or 0 in dims:
        return None
    words: Words = {"weight": weight}
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        words["bias"] = stored_in_half(bias) or bias
        if constant_of(bias) is None:
            return None
    return words, dims


def _conv(node: ir.Node) -> Group | None:
    found, shape = _weight(node), padding(node)
    if found is None or shape is None:
        return None
    words, dims = found
    group = graph.attribute_int(node, "group", 1)
    outputs, taps = dims[0] // max(group, 1), int(np.prod(dims[2:]))
    is_padded = group > 1 and not (outputs == 1 and dims[1] == 1)
    if is_padded and blocks_of(group, outputs, dims[1], taps, 2) > MOST_BLOCKS:
        return None
    return _of("conv", node, [node.inputs[0]], {**words, **shape, "group": group})


def _conv_transpose(node: ir.Node) -> Group | None:
    found = _weight(node)
    shape = None if found is None else int8_regions.spread_words(node, len(found[1]))
    if found is None or shape is None or not fits_phases(found[1], shape, 2):
        return None
    if shape["group"] == 1 and found[1][1] < int8_regions.FEWEST_OUTPUTS:
        return None
    return _of("conv_transpose", node, [node.inputs[0]], {**found[0], **shape})


def _binary(node: ir.Node, types: Types) -> Group | None:
    """Of two tensors; or of one and of a constant for all channels, or one each."""
    a, b = node.inputs
    arrays = [constant_of(a), constant_of(b)]
    if all(array is None for array in arrays):
        return _of(node.op_type.lower(), node, [a, b], {}) if node.op_type in ("Add", "Mul") else None
    number = 0 if arrays[1] is not None else 1
    x, array = node.inputs[number], arrays[1 - number]
    shape = None if x is None else types.of(x).shape
    if array is None or shape is None or arrays[number] is not None or array.ndim > len(shape):
        return None
    if len(shape) < 2 or array.size not in (1, shape[1]):  # of one channel a constant would make more
        return None
    rank = len(shape)
    sizes = (1,) * (rank - array.ndim) + array.shape
    if array.size == 0 or any(size != 1 for axis, size in enumerate(sizes) if axis != 1):
        return None
    words = _affine(node.op_type, array.ravel(), constant_first=number == 1)
    return None if words is None else _of("affine", node, [x], words)


def _affine(op: str, array: NDArray, constant_first: bool) -> Words | None:
    if op == "Add":
        return {"bias": array}
    if op == "Mul":
        return {"weight": array}
    if op == "Sub":
        return {"weight": -np.ones(1, np.float32), "bias": array} if constant_first else {"bias": -array}
    if constant_first or not np.all(np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).tiny * 4)):
        return None
    return {"weight": 1 / array}


def _batch_normalization(node: ir.Node, types: Types) -> Group | None:
    arrays = [constant_of(value) for value in node.inputs[1:5]]
    if len(arrays) != 4 or any(array is None for array in arrays) or graph.attribute_int(node, "training_mode", 0):
        return None
    scale, shift, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    factor = scale / np.sqrt(variance + graph.attribute_float(node, "epsilon", 1e-5))
    words: Words = {"weight": factor.astype(np.float32), "bias": (shift - mean * factor).astype(np.float32)}
    return _of("affine", node, [node.inputs[0]], words) if np.all(np.isfinite(factor)) else None


def _instance_normalization(node: ir.Node, types: Types) -> Group | None:
    weight, bias = (constant_of(value) for value in node.inputs[1:3])
    epsilon = graph.attribute_float(node, "epsilon", 1e-5)
    if weight is None or bias is None or weight.size == 0 or weight.shape != bias.shape or not 0 <= epsilon < math.inf:
        return None
    x = node.inputs[0]
    if x is None or types.of(x).rank not in (3, 4):
        return None
    words: Words = {"weight": weight.ravel(), "bias": bias.ravel(), "group": weight.size}
    return _of("instance_norm", node, [x], {**words, "epsilon": _number(epsilon)})


def _unary(node: ir.Node, types: Types) -> Group | None:
    words = _activation(node)
    return None if words is None else _of("affine", node, [node.inputs[0]], words)


def _max_pool(node: ir.Node, types: Types) -> Group | None:
    shape = padding(node)
    if shape is None or (len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())):
        return None
    return _of("max_pool", node, [node.inputs[0]], {**shape, "ceil": graph.attribute_int(node, "ceil_mode", 0)})


def _average_pool(node: ir.Node, types: Types) -> Group | None:
    shape = padding(node)
    if shape is None or graph.attribute_int(node, "ceil_mode", 0) or shape.pop("dilations", [1, 1]) != [1, 1]:
        return None
    counts = graph.attribute_int(node, "count_include_pad", 0)
    return _of("average_pool", node, [node.inputs[0]], {**shape, "counts_pads": counts})


def _global_average_pool(node: ir.Node, types: Types) -> Group | None:
    x = node.inputs[0]
    rank = None if x is None else types.of(x).rank
    return _of("global_average_pool", node, [x], {}) if rank in (3, 4) else None


def _reduce_mean(node: ir.Node, types: Types) -> Group | None:
    """Over all pixels."""
    x = node.inputs[0]
    words: Words = {} if graph.attribute_int(node, "keepdims", 1) else {"keeps": 0}
    is_one = x is not None and moves.is_over_pixels(node, types.of(x).rank)
    return _of("global_average_pool", node, [x], words) if is_one else None


def _concat(node: ir.Node, types: Types) -> Group | None:
    return _of("concat", node, list(node.inputs), {}) if graph.attribute_int(node, "axis", 0) == 1 else None


def _flatten(node: ir.Node, types: Types) -> Group | None:
    return _of("flatten", node, [node.inputs[0]], {}) if graph.attribute_int(node, "axis", 1) == 1 else None


_MAKERS: dict[str, Callable[[ir.Node, Types], Group | None]] = {
    **dict.fromkeys(("Add", "Mul", "Sub", "Div"), _binary),
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    **dict.fromkeys((*_PLAIN, "LeakyRelu", "HardSigmoid", "Clip"), _unary),
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "ReduceMean": _reduce_mean,
    "Concat": _concat,
    "Flatten": _flatten,
}

"""Operators as steps of int8 regions: the step's word, the values that it reads as codes, what it says besides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.passes.regions.group import Words, source_of
from onnxq.planning import int8_regions
from onnxq.planning.absorbed import behind_product
from onnxq.planning.rows import norms
from onnxq.runtime import known

#: Sums of so many products of codes and weights fit int32, with a bias as large.
MOST_PRODUCTS = 1 << 15
#: Blocks of 2 KB that the weight of a grouped convolution may become: those of small groups are mostly zeros.
MOST_BLOCKS = 1 << 15
Made = tuple[str, list[ir.Value | None], Words] | None


def _is_of(value: ir.Value | None, dtype: ir.DataType) -> ir.Node | None:
    """The DequantizeLinear that makes `value` of constants of this type without offsets."""
    node = graph.producer(value)
    if not graph.is_op(node, "DequantizeLinear") or node is None or "block_size" in node.attributes:
        return None
    codes, scale = graph.constant(node.inputs[0]), graph.constant(node.inputs[1])
    zeros = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if codes is None or scale is None or codes.dtype is not dtype or scale.dtype is not ir.DataType.FLOAT:
        return None
    return node if zeros is None or not np.any(zeros.numpy()) else None


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
    if of_weight.size > 1 and of_bias.size % of_weight.size == 0:  # groups of a ConvTranspose share scales
        of_weight = np.tile(of_weight, of_bias.size // of_weight.size)
    return bool(np.allclose(of_bias, of_x * of_weight, rtol=1e-6, atol=0.0))


def _conv(node: ir.Node) -> Made:
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


def _conv_transpose(node: ir.Node) -> Made:
    words = _weighted(node, 1)
    weight = None if words is None else words["weight"]
    if words is None or not isinstance(weight, ir.Value) or weight.shape is None:
        return None
    dims = [int(dim) for dim in weight.shape.numpy()]
    shape = int8_regions.spread_words(node, len(dims))
    if shape is None or not fits_phases(dims, shape, 1):
        return None
    return "conv_transpose", [node.inputs[0]], {**words, **shape}


def fits_phases(dims: list[int], words: Mapping[str, int | list[int]], width: int) -> bool:
    """Whether the weight of a transposed convolution is small enough for a region: what it becomes, and its sums.

    Args:
        dims: of the weight: inputs, outputs of a group, sizes.
        words: what the step says.
        width: bytes of an element.
    """
    group, strides = words["group"], words["strides"]
    assert isinstance(group, int) and isinstance(strides, list)
    inputs, taps, phases = dims[0] // max(group, 1), int(np.prod(dims[2:])), int(np.prod(strides))
    if 0 in dims or inputs * taps > MOST_PRODUCTS * phases:
        return False
    return blocks_of(group, dims[1], inputs, taps + phases, width) <= MOST_BLOCKS


def blocks_of(group: int, outputs: int, inputs: int, taps: int, width: int) -> int:
    """Blocks that the weight of a grouped convolution becomes, where small groups are computed together
    (`custom_ops/region/stage.cc`).

    Args:
        outputs: of a group, as `inputs`, whose elements are `width` bytes.
    """
    fitting = (n for n in range(1, 33) if group % n == 0 and n * outputs <= 32 and n * inputs * width <= 64)
    together = max(fitting, default=1)
    return group // together * -(-outputs * together // 32) * taps * -(-inputs * together * width // 64)


def _gemm(node: ir.Node) -> Made:
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


def _matmul(node: ir.Node) -> Made:
    words = _weighted(node, 1)
    weight = None if words is None else words["weight"]
    if words is None or not isinstance(weight, ir.Value) or weight.shape is None:
        return None
    dims = weight.shape.numpy()
    if len(dims) != 2 or dims[0] > MOST_PRODUCTS:
        return None
    added = next((each for each in behind_product(node) if each.op_type == "Add"), None)
    of_weight, biases = _is_of(node.inputs[1], ir.DataType.INT8), [] if added is None else list(added.inputs)
    for bias in (_is_of(value, ir.DataType.INT32) for value in biases):
        if bias is not None and of_weight is not None:
            if not _is_scaled(bias, of_weight, node.inputs[0]) or not _is_of_outputs(bias, int(dims[1])):
                return None
            words["bias"] = bias.inputs[0]
    return "gemm", [node.inputs[0]], words


def _is_of_outputs(bias: ir.Node, outputs: int) -> bool:
    """Whether a bias has one number for each output, along its last axis, and one scale or as many."""
    codes, scale = graph.constant(bias.inputs[0]), graph.constant(bias.inputs[1])
    if codes is None or scale is None or codes.size != outputs or codes.shape[-1] != outputs:
        return False
    rank = len(codes.shape)
    return rank < 4 and (scale.size == 1 or graph.attribute_int(bias, "axis", 1) % rank == rank - 1)


def _binary(node: ir.Node) -> Made:
    return node.op_type.lower(), list(node.inputs), {}


def _max_pool(node: ir.Node) -> Made:
    shape = padding(node)
    if shape is None or any(map(known.is_wanted, node.outputs[1:])):
        return None
    return "max_pool", [node.inputs[0]], {**shape, "ceil": graph.attribute_int(node, "ceil_mode", 0)}


def _average_pool(node: ir.Node) -> Made:
    shape = padding(node)
    if shape is None or graph.attribute_int(node, "ceil_mode", 0) or shape.pop("dilations", [1, 1]) != [1, 1]:
        return None
    counts = graph.attribute_int(node, "count_include_pad", 0)
    return "average_pool", [node.inputs[0]], {**shape, "counts_pads": counts}


def _global_average_pool(node: ir.Node) -> Made:
    return "global_average_pool", [node.inputs[0]], {}


def _reduce_mean(node: ir.Node) -> Made:
    keeps = graph.attribute_int(node, "keepdims", 1)
    return "global_average_pool", [node.inputs[0]], {} if keeps else {"keeps": 0}


def _instance_norm(node: ir.Node) -> Made:
    epsilon = graph.attribute_float(node, "epsilon", 1e-5)
    if not norms.has_constants(node) or not 0 <= epsilon < math.inf:
        return None
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    words: Words = {"weight": node.inputs[1], "bias": node.inputs[2], "group": weight.size}
    words["epsilon"] = np.array(epsilon, np.float32)
    return "instance_norm", [node.inputs[0]], words


def _concat(node: ir.Node) -> Made:
    return "concat", list(node.inputs), {}


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
MAKERS: dict[str, Callable[[ir.Node], Made]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _binary,
    "Sub": _binary,
    "Mul": _binary,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "ReduceMean": _reduce_mean,
    "Concat": _concat,
    "InstanceNormalization": _instance_norm,
}

"""TensorRT: NVIDIA's documentation, versions 10 and 11 (Quantization Schemes; Explicit Quantization; Q/DQ
Layer-Placement Recommendations), and the list of operators of its ONNX parser (onnx-tensorrt).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.targets.rules import Found, Rule, View
from onnxq.targets.rules._pairs import (
    DEQUANTIZE,
    ON_CODES,
    QUANTIZE,
    WEIGHTED,
    code_type,
    dequantized,
    is_activation,
    is_pair,
    pairs,
    readers,
    rounded_before_sums,
    scale_size,
    source_behind,
    zero_points,
)
from onnxq.targets.rules._types import lacks_trees, lacks_types

#: Types of codes, by the name of the block sizes that they want; int8 and float8 have one scale, or one a channel.
BLOCKS = {ir.DataType.INT4: (64, 128), ir.DataType.FLOAT4E2M1: (16,)}
TYPES = {ir.DataType.INT8, ir.DataType.FLOAT8E4M3FN, *BLOCKS}
#: Where the outputs are in weights.
OUTPUTS = {"Conv": (0,), "ConvTranspose": (1,), "Gemm": (0, 1), "MatMul": (1, -1)}
#: Operators that compute in int8, or pass it on.
IN_INT8 = frozenset(
    [
        *WEIGHTED,
        *("Add", "AveragePool", "Concat", "Flatten", "Gather", "GlobalAveragePool", "MaxPool", "Mul", "Pad", "Relu"),
        *("Reshape", "Resize", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
    ]
)


def operators_it_parses(view: View) -> Found:
    """Its parser knows QuantizeLinear and DequantizeLinear, not the operators on codes nor those of onnxruntime."""
    for node in view.nodes:
        if node.op_type in ON_CODES or node.domain in (graph.MICROSOFT, "onnxq"):
            yield node, f"TensorRT has no {node.domain or 'ONNX'} {node.op_type}", True


def types_of_codes(view: View) -> Found:
    """Codes are int8, float8 (E4M3), int4 or float4 (E2M1)."""
    for node in pairs(view):
        found = code_type(node)
        is_bias = found is ir.DataType.INT32
        if found is not None and found not in TYPES and not is_bias:
            yield node, f"TensorRT has no codes of type {found.name.lower()}", True


def no_zero_points(view: View) -> Found:
    """Quantization is symmetric: zero points are zero."""
    for node in pairs(view):
        zeros = zero_points(node)
        if zeros is not None and zeros.astype("float32").any():
            yield node, "its zero point is not 0: TensorRT quantizes symmetrically", True


def one_scale_for_activations(view: View) -> Found:
    """Activations in int8 and float8 have one scale; int4 is for weights only."""
    for node in pairs(view):
        if not is_activation(view, node):
            continue
        if code_type(node) is ir.DataType.INT4:
            yield node, "TensorRT has int4 for weights only", True
        elif code_type(node) is not ir.DataType.FLOAT4E2M1 and (scale_size(node) or 1) > 1:
            yield node, "an activation has one scale in TensorRT, not one a channel", True


def scales_along_outputs(view: View) -> Found:
    """Weights have one scale, or one for each output channel."""
    for node in view.of(*WEIGHTED):
        source = dequantized(node.inputs[WEIGHTED[node.op_type]])
        if source is None or is_activation(view, source) or graph.attribute_int(source, "block_size", 0):
            continue
        axis = graph.attribute_int(source, "axis", 1)
        axes = OUTPUTS[node.op_type]
        if node.op_type == "Gemm":
            axes = (0,) if graph.attribute_int(node, "transB", 0) else (1,)
        if (scale_size(source) or 1) > 1 and axis not in axes:
            yield node, "the scales of its weight are not along its outputs", True


def blocks_of_weights(view: View) -> Found:
    """int4 has blocks of 64 or 128 along one of the last two dimensions, float4 of 16; blocks are whole, of float4 both
    dimensions."""
    for node in pairs(view):
        found, block = code_type(node), graph.attribute_int(node, "block_size", 0)
        if found not in BLOCKS or not is_pair(node, DEQUANTIZE):
            continue
        word = found.name.lower()
        if block not in BLOCKS[found]:
            wanted = " or ".join(map(str, BLOCKS[found]))
            yield node, f"TensorRT reads {word} in blocks of {wanted}, not of {block or 'a channel'}", True
            continue
        sizes = _sizes(node.inputs[0])
        axis = graph.attribute_int(node, "axis", 1) % max(1, len(sizes))
        if len(sizes) - axis > 2:
            yield node, f"TensorRT reads {word} in blocks along one of the last two dimensions", True
            continue
        in_blocks = sizes[-2:] if found is ir.DataType.FLOAT4E2M1 else sizes[axis : axis + 1]
        if any(size % block for size in in_blocks):
            yield node, f"TensorRT reads {word} in whole blocks: its dimensions are no multiples of {block}", True


def double_scales(view: View) -> Found:
    """Scales of float4 are float8 codes with one scale themselves (double quantization)."""
    for node in pairs(view):
        if code_type(node) is not ir.DataType.FLOAT4E2M1 or not is_pair(node, DEQUANTIZE):
            continue
        source = dequantized(node.inputs[1])
        if source is None or code_type(source) is not ir.DataType.FLOAT8E4M3FN or (scale_size(source) or 1) > 1:
            yield node, "TensorRT reads float4 with scales in float8, which share one scale", True


def biases_stay_floats(view: View) -> Found:
    """Biases are not quantized."""
    for node in view.of("Conv", "ConvTranspose", "Gemm"):
        if len(node.inputs) > 2 and dequantized(node.inputs[2]) is not None:
            yield node, "its bias is quantized, which TensorRT does not read", True


def both_operands(view: View) -> Found:
    """All inputs of a product or convolution are rounded, or none."""
    for node in view.of(*WEIGHTED):
        x, w = dequantized(node.inputs[0]), dequantized(node.inputs[WEIGHTED[node.op_type]])
        if w is not None and x is None and code_type(w) in (ir.DataType.INT8, ir.DataType.FLOAT8E4M3FN):
            yield node, "its weight is quantized and its input is not: it computes in floating point", False
        if x is not None and w is None:
            yield node, "its input is quantized and its weight is not: it computes in floating point", False


def residual_inputs(view: View) -> Found:
    """Of a sum of a convolution and something else that something is rounded, not the convolution's result."""
    for node in rounded_before_sums(view):
        yield node, "it is rounded before the sum that it could be fused with", False


def no_lonely_outputs(view: View) -> Found:
    """What a product or convolution returns is not rounded where nothing in int8 reads it."""
    for node in view.of(QUANTIZE):
        if not is_activation(view, node) or source_behind(node, WEIGHTED) is None:
            continue
        behind = [each for reader in readers(node.outputs[0]) for each in readers(reader.outputs[0])]
        if not any(graph.is_op(each, *IN_INT8) for each in behind):
            yield node, "it rounds what only floating-point operators read", False


def types_it_has(view: View) -> Found:
    """No strings; of float64 it makes float32."""
    double = ("it computes in float32", False)
    yield from lacks_types(
        view, "TensorRT", {ir.DataType.STRING: ("it does not parse them", True), ir.DataType.DOUBLE: double}
    )
    yield from lacks_trees(view, "TensorRT", "it does not parse it", refuses=True)


def _sizes(value: ir.Value | None) -> tuple[int, ...]:
    """The dimensions of a value; () where they are not known."""
    tensor = graph.constant(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy())
    shape = None if value is None else value.shape
    return shape.numpy() if shape is not None and shape.is_static() else ()


RULES: tuple[Rule, ...] = (
    operators_it_parses,
    types_of_codes,
    no_zero_points,
    one_scale_for_activations,
    scales_along_outputs,
    blocks_of_weights,
    double_scales,
    biases_stay_floats,
    both_operands,
    residual_inputs,
    no_lonely_outputs,
    types_it_has,
)

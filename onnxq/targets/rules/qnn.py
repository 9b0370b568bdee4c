"""Qualcomm's neural processors by onnxruntime's QNN provider: its documentation (QNN Execution Provider), onnxruntime's
own preparation of models for it (`quantization/execution_providers/qnn`), and the provider's sources for weights in
blocks (`lpbqmatmul_fusion.cc`, `lpbqgemm_fusion.cc`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    scale_size,
    zero_points,
)
from onnxq.targets.rules._types import ON_PROCESSOR, lacks_types

ACTIVATIONS = {ir.DataType.UINT8, ir.DataType.UINT16}
#: Operators of the standard domain that it has.
OPERATORS = frozenset(
    [
        *("Abs", "Add", "And", "ArgMax", "ArgMin", "Asin", "Atan", "AveragePool", "BatchNormalization", "Cast", "Ceil"),
        *("Clip", "Concat", "Conv", "ConvTranspose", "Cos", "CumSum", "DepthToSpace", "DequantizeLinear", "Div"),
        *("Einsum", "Elu", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND"),
        *("Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample"),
        *("HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization"),
        *("LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "MatMul", "Max", "MaxPool"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "Reciprocal"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Resize", "Round"),
        *("ScatterElements", "ScatterND", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus", "SpaceToDepth"),
        *("Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "TopK", "Transpose", "Unsqueeze", "Upsample", "Where"),
    ]
)
#: Those of onnxruntime's domain.
MICROSOFT = frozenset({"DequantizeLinear", "QuantizeLinear", "Gelu", "QuickGelu", "FusedMatMul"})
#: Of weights in blocks: the largest of the integers that their scales are, and the shortest block.
LARGEST_SCALE, LEAST_BLOCK = 16, 16
#: Operators whose weights may have one scale a channel, and the axis of those.
CHANNELS = {"Conv": 0, "ConvTranspose": 1}


def fixed_sizes(view: View) -> Found:
    """Inputs have fixed sizes."""
    inputs = [value for value in view.model.graph.inputs if graph.constant(value) is None]
    free = [value for value in inputs if value.shape is None or not value.shape.is_static()]
    for value in free:
        yield value.name or "", f"QNN loads fixed sizes only: {_how_to_fix(free)}", True


def _how_to_fix(values: Sequence[ir.Value]) -> str:
    """A sentence for all of them: the tool fixes one name, or one input, at a time."""
    names, whole = dict[str, None](), list[str]()
    for value in values:
        dims = [None] if value.shape is None else [dim.value for dim in value.shape if isinstance(dim, ir.SymbolicDim)]
        names |= dict.fromkeys(dim for dim in dims if dim)
        if not all(dims):
            whole.append(value.name or "")
    left = [*(f"size '{name}'" for name in names), *(f"all sizes of '{name}'" for name in whole)]
    which = f"--dim_param {next(iter(names))} --dim_value 1" if names else f"--input_name {whole[0]} --input_shape 1,…"
    tool = f"'python -m onnxruntime.tools.make_dynamic_shape_fixed {which} MODEL FIXED'"
    if len(left) == 1:
        return f"fix {left[0]} by {tool}"
    others = " (--input_name … --input_shape … for all of an input's)" if names and whole else ""
    return f"fix {', '.join(left[:-1])} and {left[-1]}, one after the other, by {tool} and so on{others}"


def operators_it_has(view: View) -> Found:
    """No control flow, and operators of its list; the processor computes others."""
    for node in view.nodes:
        if graph.has_body(node):
            yield node, f"QNN has no {node.op_type}", True
        elif node.op_type in ON_CODES:
            yield node, f"QNN reads QuantizeLinear and DequantizeLinear, not {node.op_type}", True
        elif node.op_type not in (OPERATORS if node.domain == "" else MICROSOFT if _is_ms(node) else ()):
            yield node, f"QNN has no {node.op_type}: the processor computes it", False


def types_of_activations(view: View) -> Found:
    """Activations are uint8 or uint16, with one scale."""
    for node in pairs(view):
        if not is_activation(view, node):
            continue
        found = code_type(node)
        if found is not None and found not in ACTIVATIONS:
            yield node, f"activations are uint8 or uint16 in QNN, not {found.name.lower()}", True
        if (scale_size(node) or 1) > 1:
            yield node, "an activation has one scale in QNN, not one a channel", True


def symmetric_channels(view: View) -> Found:
    """Weights with one scale a channel are symmetric and signed; only convolutions have them, along their outputs."""
    for node in view.of(*WEIGHTED):
        source = dequantized(node.inputs[WEIGHTED[node.op_type]])
        if source is None or is_activation(view, source) or (scale_size(source) or 1) < 2:
            continue
        if graph.attribute_int(source, "block_size", 0):
            continue
        zeros = zero_points(source)
        if (zeros is not None and zeros.astype("int32").any()) or code_type(source) in ACTIVATIONS:
            yield node, "QNN's weights with one scale a channel are symmetric and signed", True
        if node.op_type not in CHANNELS:
            yield node, f"a {node.op_type}'s weight has one scale in QNN, not one a channel", True
        elif graph.attribute_int(source, "axis", 1) != CHANNELS[node.op_type]:
            yield node, "the scales of its weight are not along its outputs", True


def blocks_of_weights(view: View) -> Found:
    """Blocks (LPBQ) are int4 with scales that are codes of 4 bits, with one floating-point scale a channel."""
    for node in pairs(view):
        block = graph.attribute_int(node, "block_size", 0)
        if not block or is_activation(view, node):
            continue
        scales = dequantized(node.inputs[1])
        is_lpbq = scales is not None and code_type(scales) is ir.DataType.UINT8 and scale_size(scales) is not None
        if scales is None or not is_lpbq or code_type(node) is not ir.DataType.INT4:
            says = "QNN reads blocks of int4 whose scales are codes of 8 bits with one scale a channel, and no others"
            yield node, says, True
            continue
        yield from ((node, says, True) for says in _wrong_in_blocks(node, scales, block))
        for reader in readers(node.outputs[0]):
            if graph.is_op(reader, "Gemm") and len(reader.inputs) > 2:
                yield reader, "QNN's provider loses the bias of a Gemm whose weight is in blocks", True


def _wrong_in_blocks(node: ir.Node, scales: ir.Node, block: int) -> Iterator[str]:
    """What is wrong with a weight in blocks."""
    weight, steps = graph.constant(node.inputs[0]), graph.constant(scales.inputs[0])
    if steps is not None:
        codes = steps.numpy().astype("int32")
        if codes.size and (codes.min() < 1 or codes.max() > LARGEST_SCALE):
            yield f"scales of blocks are integers from 1 to {LARGEST_SCALE} in QNN"
    for each in (node, scales):
        zeros = zero_points(each)
        if zeros is not None and zeros.astype("int32").any():
            yield "QNN's weights in blocks are symmetric: their zero points are 0"
    if zero_points(node) is None:
        yield "it has no zero points, by which QNN's provider tells the type of its codes"
    sizes = () if weight is None else tuple(weight.shape.numpy())
    axis = graph.attribute_int(node, "axis", 1)
    is_whole = not sizes or (-len(sizes) <= axis < len(sizes) and sizes[axis] % block == 0)
    if block < LEAST_BLOCK or block & (block - 1) or not is_whole:
        yield f"QNN reads whole blocks of {LEAST_BLOCK} or another power of two, not of {block}"


def whole_units(view: View) -> Found:
    """A node that reads quantized activations is rounded behind each output, and so is all else that it reads."""
    for node in view.nodes:
        if node.domain or node.op_type in (QUANTIZE, DEQUANTIZE, "Cast") or is_pair(node, QUANTIZE):
            continue
        read = [value for value in node.inputs if value is not None and not view.is_constant(value)]
        rounded = [value for value in read if dequantized(value) is not None]
        if not rounded:
            continue
        outputs = [out for out in node.outputs if out.uses() or out.is_graph_output()]
        if not all(map(_is_rounded, outputs)) or len(rounded) < len(read):
            yield node, "it computes in float16: not all that it reads and makes is rounded", False


def products_are_rounded(view: View) -> Found:
    """Products and convolutions compute in integers."""
    for node in view.nodes:
        if graph.is_op(node, *WEIGHTED) and dequantized(node.inputs[0]) is None:
            yield node, "it computes in float16: its input is not rounded", False


def equal_widths(view: View) -> Found:
    """Sums, differences and the like read and make codes of one width."""
    for node in view.nodes:
        if not graph.is_op(node, "Add", "Sub", "Mul", "Div", "Max", "Min", "Concat"):
            continue
        types = {code_type(source) for value in node.inputs if (source := dequantized(value)) is not None}
        if len(types) > 1:
            yield node, "it reads codes of different types", True


def _is_ms(node: ir.Node) -> bool:
    return node.domain == graph.MICROSOFT


def _is_rounded(value: ir.Value) -> bool:
    """Whether QuantizeLinear alone reads the value, perhaps behind a Relu or Clip."""
    behind = readers(value)
    if len(behind) == 1 and graph.is_op(behind[0], "Relu", "Clip"):
        behind = readers(behind[0].outputs[0])
    return bool(behind) and not value.is_graph_output() and all(is_pair(each, QUANTIZE) for each in behind)


def types_it_has(view: View) -> Found:
    """No strings, and no float64."""
    yield from lacks_types(view, "QNN", ON_PROCESSOR)


RULES: tuple[Rule, ...] = (
    fixed_sizes,
    operators_it_has,
    types_of_activations,
    symmetric_channels,
    blocks_of_weights,
    whole_units,
    products_are_rounded,
    equal_widths,
    types_it_has,
)

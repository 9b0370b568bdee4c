"""onnxruntime's WebGPU provider: its list of operators (`js/web/docs/webgpu-operators.md`) and the sources of its
kernels for packed weights. What it does not have, the processor computes, with a copy there and back.
"""

from __future__ import annotations

from onnxq.model import graph
from onnxq.targets.rules import Found, Rule, View
from onnxq.targets.rules._types import ON_PROCESSOR, lacks_types

OPERATORS = frozenset(
    [
        *("Abs", "Acos", "Acosh", "Add", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "AveragePool"),
        *("BatchNormalization", "Cast", "Ceil", "Clip", "Concat", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum"),
        *("DepthToSpace", "DequantizeLinear", "Div", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten"),
        *("Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool"),
        *("Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "If", "InstanceNormalization"),
        *("LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "MatMul", "MaxPool", "Mul", "Neg", "Not"),
        *("Pad", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape"),
        *("Resize", "ScatterND", "Shape", "Sigmoid", "Sin", "Sinh", "Slice", "Softmax", "Split", "Sqrt", "Squeeze"),
        *("Sub", "Tan", "Tanh", "ThresholdedRelu", "Tile", "Transpose", "Unsqueeze", "Where"),
    ]
)
MICROSOFT = frozenset(
    [
        *("Attention", "BiasAdd", "BiasSplitGelu", "FastGelu", "FusedConv", "GatherBlockQuantized", "Gelu"),
        *("GroupQueryAttention", "MatMulNBits", "MultiHeadAttention", "QuickGelu", "RotaryEmbedding"),
        *("SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    ]
)
BITS = (4, 8)


def operators_it_has(view: View) -> Found:
    """Operators of its list: no int8 kernels, and no QuantizeLinear."""
    for node in view.nodes:
        if node.op_type not in (
            OPERATORS if node.domain == "" else MICROSOFT if node.domain == graph.MICROSOFT else ()
        ):
            yield node, f"the WebGPU provider has no {node.op_type}: the processor computes it", False


def packed_weights(view: View) -> Found:
    """MatMulNBits and GatherBlockQuantized have 4 and 8 bits, in blocks of a power of two from 16 on."""
    for node in view.of("MatMulNBits", "GatherBlockQuantized", domain=graph.MICROSOFT):
        bits, block = graph.attribute_int(node, "bits", 4), graph.attribute_int(node, "block_size", 128)
        if bits not in BITS:
            yield node, f"the WebGPU provider's {node.op_type} has no {bits} bits", True
        if block < 16 or block & (block - 1):
            yield node, f"the WebGPU provider's {node.op_type} has no blocks of {block}", True


def plain_convolutions(view: View) -> Found:
    """Convolutions of one or two dimensions."""
    for node in view.of("Conv"):
        rank = None if node.inputs[0] is None else view.types.of(node.inputs[0]).rank
        if rank is not None and rank > 4:
            yield node, f"the WebGPU provider has no convolution of {rank - 2} dimensions", False


def types_it_has(view: View) -> Found:
    """No strings, and no float64."""
    yield from lacks_types(view, "the WebGPU provider", ON_PROCESSOR)


RULES: tuple[Rule, ...] = (operators_it_has, packed_weights, plain_convolutions, types_it_has)

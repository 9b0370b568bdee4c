"""What a node computes, whatever the codes it computes with and whatever was fused into it."""

from __future__ import annotations

import re

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph

#: Operators that compute what another one does, by name.
_SAME = {
    "Gemm": "MatMul",
    "MatMulInteger": "MatMul",
    "MatMulIntegerToFloat": "MatMul",
    "DynamicQuantizeMatMul": "MatMul",
    "MatMulNBits": "MatMul",
    "MatMulBnb4": "MatMul",
    "QGemm": "MatMul",
    "ConvInteger": "Conv",
    "NhwcConv": "Conv",
    "NhwcMaxPool": "MaxPool",
    "GatherBlockQuantized": "Gather",
    "DynamicQuantizeLSTM": "LSTM",
    "QAttention": "Attention",
    "QMoE": "MoE",
    "QEmbedLayerNormalization": "EmbedLayerNormalization",
    "Swish": "QuickGelu",
    own_ops.DENSE: "MatMul",
    own_ops.GATHER: "Gather",
}
#: Index of the bias, by operator; -1: it is in none.
_BIAS = {
    "Conv": 2,
    "FusedConv": 2,
    "NhwcConv": 2,
    "NhwcFusedConv": 2,
    "Gemm": 2,
    "FusedGemm": 2,
    "MatMulIntegerToFloat": 6,
    "DynamicQuantizeMatMul": 4,
    own_ops.DENSE: 2,
}


def family(node: ir.Node) -> str:
    """A word that is the same for operators that compute the same."""
    if node.op_type == own_ops.RECURRENT and node.domain == own_ops.DOMAIN:
        return graph.attribute_string(node, "cell", node.op_type)
    op = re.sub(r"^(Nhwc)?(Fused|QLinear)", "", node.op_type)
    return _SAME.get(op, op)


def has_bias(node: ir.Node) -> bool:
    """Whether a product adds a bias itself."""
    if node.op_type == own_ops.MATMUL:  # of either domain
        own = node.domain == own_ops.DOMAIN and "_bias" in node.overload
        return own or (node.domain == graph.MICROSOFT and len(node.inputs) > 5 and node.inputs[5] is not None)
    index = _BIAS.get(node.op_type, len(node.inputs))
    return index < len(node.inputs) and node.inputs[index] is not None


def has_factor(node: ir.Node) -> bool:
    """Whether a product multiplies its sums by a number itself."""
    return node.op_type in ("Gemm", "FusedMatMul", "FusedGemm") and graph.attribute_float(node, "alpha", 1.0) != 1.0


def has_sum(node: ir.Node) -> bool:
    """Whether a convolution adds another activation itself."""
    return node.op_type in ("FusedConv", "NhwcFusedConv") and len(node.inputs) > 3 and node.inputs[3] is not None


def activation_of(node: ir.Node) -> str:
    """The operator that was fused into a product or a convolution, if any was."""
    return graph.attribute_string(node, "activation", "") if node.op_type.startswith(("Fused", "NhwcFused")) else ""

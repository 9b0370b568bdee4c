"""qnn: Qualcomm's neural processors (HTP), by onnxruntime's QNN provider."""

from __future__ import annotations

import dataclasses

from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.targets import Target, is_plain_matmul
from onnxq.targets.onnx import BLOCKS

#: Of weights whose scales are integers, the longest first, where the user names none.
LPBQ_BLOCKS = (64, 32, 16)


class qnn(Target):
    """By the provider's documentation and onnxruntime's preparation for it (`quantization/execution_providers/qnn`):
    all of the network in integers, activations of 8 bits, or of 16 with scheme w8a16, each node between
    DequantizeLinear and QuantizeLinear; weights of convolutions symmetric with one scale a channel, those of products
    with one scale, or, of 4 bits, in blocks whose scales are 4-bit integers times one float a channel (LPBQ). Those are
    for MatMul: the provider's Gemm in blocks takes its bias from a float constant, and does not pass it on.
    """

    name = "qnn"
    static = ("Conv", "MatMul", "Gemm")
    consumer = "QNNExecutionProvider"
    least_bits = 4
    auto = ("w8a8", "fp16")
    wide = ("w8a16", "w4a16")
    in_blocks = "lpbq"
    spelled = ("lpbq",)
    rounds_products = True
    rounded = frozenset(
        [
            *("Abs", "Add", "AveragePool", "Clip", "Concat", "Div", "Elu", "Gelu", "GlobalAveragePool", "HardSigmoid"),
            *("HardSwish", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Relu", "Sigmoid", "Softmax"),
            *("Sqrt", "Sub", "Tanh"),
        ]
    )
    passes = ("insert_qdq", "spell_floats", "store_weights", "convert_to_half")

    def opset_for(self, scheme: str) -> int:
        return BLOCKS if scheme in (*self.wide, "w4a8") else super().opset_for(scheme)

    def refusal(self, word: str) -> str:
        if word == self.in_blocks:
            return "its blocks are for integer activations, those of --scheme w4a16 and w4a8"
        return super().refusal(word)

    def preferred(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method is not Method.STATIC or wish.format != self.in_blocks or not is_plain_matmul(weight):
            return wish
        k = weight.shape[weight.role.contraction]
        return dataclasses.replace(wish, block=next((b for b in LPBQ_BLOCKS if k % b == 0), wish.block))

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method in (Method.DYNAMIC, Method.PACKED):
            word = "ranges that are known before" if wish.method is Method.DYNAMIC else "integer activations too"
            return super().place(weight, in_float(wish, f"QNN wants {word}: unpacked when the model loads"))
        if wish.format == self.in_blocks:
            reason = _no_blocks(weight, wish)
            if not reason:
                return wish
            wish = wish.to(wish.method, "int8", None, reason)
        if wish.method is Method.STATIC and wish.op != "Conv":
            wish = dataclasses.replace(wish, granularity="tensor")
        return super().place(weight, wish)


def _no_blocks(weight: Weight, wish: Choice) -> str:
    """Why the weight is in no blocks whose scales are integers; empty if it can be."""
    if wish.method is not Method.STATIC:
        return "QNN has blocks beside integer activations only: 8 bits"
    if weight.node.op_type != "MatMul" or not is_plain_matmul(weight):
        return "QNN's provider has blocks for the matrix of a MatMul only: 8 bits"
    block = wish.block or 0
    if block < LPBQ_BLOCKS[-1] or block & (block - 1) or weight.shape[weight.role.contraction] % block:
        return "QNN reads whole blocks of 16 or another power of two: 8 bits"
    return ""

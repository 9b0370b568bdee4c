"""qnn: Qualcomm's neural processors (HTP), by onnxruntime's QNN provider."""

from __future__ import annotations

import dataclasses

from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.targets import Target
from onnxq.targets.onnx import BLOCKS


class qnn(Target):
    """By the provider's documentation and onnxruntime's preparation for it (`quantization/execution_providers/qnn`):
    all of the network in integers, activations of 8 bits, or of 16 with scheme w8a16, each node between
    DequantizeLinear and QuantizeLinear; weights of convolutions symmetric with one scale a channel, those of products
    with one scale.
    """

    name = "qnn"
    static = ("Conv", "MatMul", "Gemm")
    consumer = "QNNExecutionProvider"
    least_bits = 4
    auto = ("w8a8", "fp16")
    wide = ("w8a16",)
    rounds_products = True
    rounded = frozenset(
        [
            *("Abs", "Add", "AveragePool", "Clip", "Concat", "Div", "Elu", "Gelu", "GlobalAveragePool", "HardSigmoid"),
            *("HardSwish", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Relu", "Sigmoid", "Softmax"),
            *("Sqrt", "Sub", "Tanh"),
        ]
    )
    passes = ("insert_qdq", "store_weights", "convert_to_half")

    def opset_for(self, scheme: str) -> int:
        return BLOCKS if scheme in self.wide else super().opset_for(scheme)

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method in (Method.DYNAMIC, Method.PACKED):
            word = "ranges that are known before" if wish.method is Method.DYNAMIC else "integer activations too"
            return super().place(weight, in_float(wish, f"QNN wants {word}: unpacked when the model loads"))
        if wish.method is Method.STATIC and wish.op != "Conv":
            wish = dataclasses.replace(wish, granularity="tensor")
        return super().place(weight, wish)

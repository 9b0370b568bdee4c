"""ort-cuda: stock onnxruntime on NVIDIA's GPUs, with the operators that its CUDA provider has."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.targets import Target
from onnxq.targets.ort_cpu import ort_cpu


class ort_cuda(ort_cpu):
    """What the provider of onnxruntime 1.31 holds, by the names of the kernels in onnxruntime-gpu's library and the
    operators' own descriptions: MatMulNBits of 2, 4 and 8 bits, MatMulBnb4 and GatherBlockQuantized in float32 and
    float16, QMoE in half precision only. It has no kernels for QLinearConv or the other int8 operators, so activations
    stay floats; fp16 computes in float16 but for what is too narrow there.
    """

    name = "ort-cuda"
    with_library = ""
    float_types = ("float32", "float16")
    static = ()
    dynamic = ()
    consumer = "CUDAExecutionProvider"
    auto = ("w4a16", "w4a16")
    passes = ("replace_matmuls", "quantize_gathers", "quantize_experts", "store_weights", "convert_to_half")

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method in (Method.STATIC, Method.DYNAMIC):
            return in_float(wish, "the CUDA provider has no int8 kernels: 8 bits a channel, unpacked when it loads")
        if wish.method is Method.PACKED and wish.op == "MoE" and weight.tensor.dtype is not ir.DataType.FLOAT16:
            return in_float(wish, "the CUDA provider's QMoE computes in float16 only: unpacked when the model loads")
        if wish.method is Method.HALF:
            return Target.place(self, weight, wish)
        return super().place(weight, wish)

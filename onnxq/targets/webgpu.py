"""webgpu: graphics processors in browsers and elsewhere, by onnxruntime's WebGPU provider."""

from __future__ import annotations

from onnxq import formats
from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.targets import Target, no_table_kernel
from onnxq.targets.ort_cpu import ort_cpu


class webgpu(ort_cpu):
    """By onnxruntime's list of its operators (`js/web/docs/webgpu-operators.md`) and the sources of its kernels:
    MatMulNBits and GatherBlockQuantized of 4 and 8 bits, in float32 and float16; no int8 convolutions or products.
    """

    name = "webgpu"
    with_library = ""
    float_types = ("float32", "float16")
    static = ()
    dynamic = ()
    packed = ("MatMul", "Gemm", "Gather")
    consumer = "WebGpuExecutionProvider"
    auto = ("w4a16", "w4a16")
    passes = ("replace_matmuls", "quantize_gathers", "store_weights", "convert_to_half")

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method in (Method.STATIC, Method.DYNAMIC):
            return in_float(wish, "the WebGPU provider has no int8 kernels: 8 bits a channel, unpacked when it loads")
        if wish.method is Method.HALF:
            return Target.place(self, weight, wish)
        format = formats.get(wish.format or "")
        if wish.method is Method.PACKED and not (format.is_integer and format.bits in (4, 8)):
            if wish.op == "Gather":
                return no_table_kernel(wish)
            return in_float(wish, f"the WebGPU provider multiplies by no {wish.format} weights: unpacked when it loads")
        return super().place(weight, wish)

"""ort-cpu: stock onnxruntime on a processor, with its com.microsoft operators."""

from __future__ import annotations

from onnxq import formats
from onnxq.model import graph
from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.runtime import known
from onnxq.targets import Target, no_table_kernel


class ort_cpu(Target):
    name = "ort-cpu"
    with_library = "onnxq"
    unpacks_wide_blocks = True
    static: tuple[str, ...] = ("Conv", "MatMul", "Gemm")
    static_weights = ("int8", "int4")
    dynamic: tuple[str, ...] = ("MatMul", "Gemm", "LSTM")
    packed: tuple[str, ...] = ("MatMul", "Gemm", "Gather", "MoE")
    domains = (graph.MICROSOFT,)
    passes: tuple[str, ...] = (
        "insert_qdq",
        "quantize_dynamically",
        "replace_matmuls",
        "quantize_gathers",
        "quantize_experts",
        "store_weights",
        "convert_to_half",
    )

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method is Method.HALF:
            return in_float(wish, "onnxruntime's processor kernels compute in float32: unpacked when the model loads")
        if wish.method is Method.DYNAMIC and wish.op == "LSTM":
            if weight.node.attributes.get("layout") is not None:
                return in_float(wish, "DynamicQuantizeLSTM has no layout attribute")
            return wish
        format = formats.get(wish.format or "")
        if wish.method is Method.PACKED and wish.op == "Gather":
            if format.levels is not None:
                return no_table_kernel(wish)
            if format.bits == 4 and weight.shape[1] % 2:
                reason = "rows of odd length do not fill whole bytes in 4 bits: 8 bits"
                return wish.to(Method.PACKED, "int8", wish.block, reason)
            if format.bits < min(known.GATHER_BITS):
                return wish.to(Method.PACKED, "int8", wish.block, "no kernel looks rows up in 2 bits: 8 bits")
        has_product = format.bits in known.MATMUL_BITS if format.is_integer else format.bnb4 is not None
        if wish.method is Method.PACKED and not has_product:
            block = wish.block if format.bits <= 8 else None
            reason = f"no kernel multiplies by {wish.format}: unpacked when the model loads"
            return wish.to(Method.STORED, wish.format, block, reason)
        return super().place(weight, wish)

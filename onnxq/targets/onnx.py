"""onnx: standard operators only, for any ONNX runtime."""

from __future__ import annotations

from onnxq import formats
from onnxq.model import graph
from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method, in_float
from onnxq.schemes import weight_format
from onnxq.targets import Target, at_least_four_bits, no_table_kernel

#: The opsets that brought blocks and types of 4 bits, and types of 2 bits.
BLOCKS, TWO_BITS = 21, 25


class onnx(Target):
    name = "onnx"
    unpacks_wide_blocks = True
    float_types = ("float32", "float16")
    static = ("Conv", "MatMul", "Gemm")
    static_weights = ("int8", "int4")
    dynamic = ("MatMul", "Gemm")
    packed = ("MatMul", "Gemm")
    passes: tuple[str, ...] = (
        "insert_qdq",
        "quantize_dynamically",
        "replace_matmuls",
        "store_weights",
        "convert_to_half",
    )

    def opset_for(self, scheme: str) -> int:
        opset = super().opset_for(scheme)
        if opset:
            return opset
        format = formats.get(weight_format(scheme))
        if not format.is_integer or format.bits > 8:  # unpacked by operators of any version
            return 0
        return BLOCKS if format.bits >= 4 else TWO_BITS

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method is Method.DYNAMIC and wish.op == "LSTM":
            return in_float(wish, "standard ONNX has no dynamically quantized LSTM: unpacked when the model loads")
        if wish.method is Method.PACKED:
            format = formats.get(wish.format or "")
            has_type = format.is_integer
            if format.bits > 8:
                return in_float(wish, f"no kernel reads {format.bits} bits: unpacked when the model loads")
            if wish.op == "Gather" and not has_type:
                return no_table_kernel(wish)
            if wish.op == "Gather":
                reason = "standard ONNX has no Gather on blocks: unpacked when the model loads"
                return at_least_four_bits(in_float(wish, reason))
            if not has_type:
                return in_float(wish, f"standard ONNX has no {wish.format} type: unpacked when the model loads")
            if _several_products_read(weight):
                reason = "onnxruntime fuses no codes that several nodes read: unpacked when the model loads"
                return at_least_four_bits(in_float(wish, reason))
        return super().place(weight, wish)


def _several_products_read(weight: Weight) -> bool:
    """Whether other products of the same graph read it; a subgraph has codes of its own (docs/fusion.md)."""
    readers = {use.node for use in weight.value.uses()}
    products = [node for node in readers if graph.is_op(node, "MatMul", "Gemm") and node.graph is weight.node.graph]
    return len(products) > 1

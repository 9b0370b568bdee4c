"""ort-cpu: stock onnxruntime on a processor, with its com.microsoft operators."""

from __future__ import annotations

from dataclasses import replace

from onnxq import formats, layouts
from onnxq.model.weights import Weight
from onnxq.plan import Method
from onnxq.targets import (
    OPSETS,
    Placement,
    at_least_four_bits,
    needs_plain_matmul,
    no_table_kernel,
    refuse_own_formats,
    stored,
)


class ort_cpu:
    name = "ort-cpu"
    widens_half = True
    has_contrib_ops = True
    has_onnxq_ops = False

    def opset_for(self, scheme: str) -> int:
        return OPSETS.get(scheme, 0)

    def refusal(self, format: str) -> str:
        return refuse_own_formats(format)

    def place(self, weight: Weight, wish: Placement) -> Placement:
        op = weight.node.op_type
        if wish.method is Method.HALF:
            return stored(wish, "onnxruntime's processor kernels compute in float32: unpacked when the model loads")
        if wish.method is Method.DYNAMIC and op == "LSTM":
            if weight.node.attributes.get("layout") is not None:
                return stored(wish, "DynamicQuantizeLSTM has no layout attribute")
            return wish
        if wish.method is Method.PACKED and op == "Gather" and wish.format in layouts.BNB4_FORMATS:
            return no_table_kernel(wish)
        bits = formats.get(wish.format).bits
        if wish.method is Method.PACKED and op == "Gather" and bits == 4 and weight.shape[1] % 2:
            return replace(wish, format="int8", reason="rows of odd length do not fill whole bytes in 4 bits: 8 bits")
        if wish.method is Method.PACKED and op == "Gather" and bits == 2:
            return replace(wish, format="int8", reason="no kernel looks rows up in 2 bits: 8 bits")
        if wish.method is Method.PACKED and bits > 8:
            return stored(
                replace(wish, block=None), f"no kernel multiplies by {wish.format}: unpacked when the model loads"
            )
        return at_least_four_bits(needs_plain_matmul(weight, wish))

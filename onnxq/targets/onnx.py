"""onnx: standard operators only, for any ONNX runtime."""

from __future__ import annotations

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

#: Opset 21 brought blocks and 4-bit types, 25 those of 2 bits.
_OPSETS = {**OPSETS, "w8a16": 21, "w4a16": 21}
_UNTYPED = {"auto", "fp16", "float16", "int16", "uint16", *layouts.BNB4_FORMATS}


class onnx:
    name = "onnx"
    widens_half = False
    has_contrib_ops = False
    has_onnxq_ops = False

    def opset_for(self, scheme: str) -> int:
        if scheme in _OPSETS or scheme in _UNTYPED:
            return _OPSETS.get(scheme, 0)
        return 21 if formats.get(scheme).bits >= 4 else 25

    def refusal(self, format: str) -> str:
        return refuse_own_formats(format)

    def place(self, weight: Weight, wish: Placement) -> Placement:
        op = weight.node.op_type
        if wish.method is Method.DYNAMIC and op == "LSTM":
            return stored(wish, "standard ONNX has no dynamically quantized LSTM: unpacked when the model loads")
        if wish.method is Method.PACKED:
            has_type = wish.format not in layouts.BNB4_FORMATS
            if op == "Gather" and not has_type:
                return no_table_kernel(wish)
            if op == "Gather":
                reason = "standard ONNX has no Gather on blocks: unpacked when the model loads"
                return at_least_four_bits(stored(wish, reason))
            if not has_type:
                return stored(wish, f"standard ONNX has no {wish.format} type: unpacked when the model loads")
        return at_least_four_bits(needs_plain_matmul(weight, wish))

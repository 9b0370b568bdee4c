"""onnx: standard operators only, for any ONNX runtime."""

from __future__ import annotations

from onnxq.plan import Method
from onnxq.targets import Placement, needs_plain_matmul, stored
from onnxq.weights import Weight


class onnx:
    name = "onnx"
    widens_half = False
    has_contrib_ops = False
    has_onnxq_ops = False

    def opset_for(self, scheme: str) -> int:
        # 13: one scale a channel, and bfloat16; 19: float16 scales; 21: blocks and 4-bit types.
        return {"w8a8": 13, "w8a8-dynamic": 11, "w8a16": 21, "w4a16": 21, "bf16": 13}.get(scheme, 0)

    def place(self, weight: Weight, wish: Placement) -> Placement:
        op = weight.node.op_type
        if wish.method is Method.DYNAMIC and op == "LSTM":
            return stored(wish, "standard ONNX has no dynamically quantized LSTM: unpacked when the model loads")
        if wish.method is Method.PACKED:
            if op == "Gather" and wish.format in ("nf4", "fp4"):
                reason = f"no kernel looks rows up in {wish.format}: 8 bits a row"
                return Placement(Method.STORED, "int8", None, reason)
            if op == "Gather":
                return stored(wish, "standard ONNX has no Gather on blocks: unpacked when the model loads")
            if wish.format not in ("int8", "uint4"):
                return stored(wish, f"standard ONNX has no {wish.format} type: unpacked when the model loads")
        return needs_plain_matmul(weight, wish)

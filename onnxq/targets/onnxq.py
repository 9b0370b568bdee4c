"""onnxq: operators of the onnxq domain, each with its body in standard ONNX: runs anywhere, fast with the library."""

from __future__ import annotations

from onnxq import bodies
from onnxq.plan import Method
from onnxq.targets import OPSETS, Placement, needs_plain_matmul, stored
from onnxq.weights import Weight


class onnxq:
    name = "onnxq"
    widens_half = False
    has_contrib_ops = False
    has_onnxq_ops = True

    def opset_for(self, scheme: str) -> int:
        return {**OPSETS, "fp16": 0, "float16": 0}.get(scheme, bodies.OPSET)

    def refusal(self, format: str) -> str:
        return ""

    def place(self, weight: Weight, wish: Placement) -> Placement:
        if wish.method is Method.DYNAMIC and weight.node.op_type == "LSTM":
            return stored(wish, "standard ONNX has no dynamically quantized LSTM: unpacked when the model loads")
        if wish.method is Method.PACKED and wish.format not in bodies.KERNEL_FORMATS:
            return stored(wish, f"no kernel multiplies by {wish.format}: unpacked when the model loads")
        return needs_plain_matmul(weight, wish)

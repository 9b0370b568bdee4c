"""onnxq: operators of the onnxq domain, each with its body in standard ONNX: runs anywhere, fast with the library."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model.weights import Weight
from onnxq.plan import Method
from onnxq.targets import OPSETS, Placement, is_plain_matmul, needs_plain_matmul, stored


class onnxq:
    name = "onnxq"
    widens_half = False
    has_contrib_ops = False
    has_onnxq_ops = True

    def opset_for(self, scheme: str) -> int:
        others = {word: opset for word, opset in OPSETS.items() if word not in ("bf16", "bfloat16")}
        return {**others, "fp16": 0, "float16": 0}.get(scheme, own_ops.OPSET)

    def refusal(self, format: str) -> str:
        return ""

    def place(self, weight: Weight, wish: Placement) -> Placement:
        if wish.method is Method.DYNAMIC and weight.node.op_type == "LSTM":
            return stored(wish, "standard ONNX has no dynamically quantized LSTM: unpacked when the model loads")
        if wish.method is Method.PACKED and wish.format not in own_ops.KERNEL_FORMATS:
            return stored(wish, f"no kernel multiplies by {wish.format}: unpacked when the model loads")
        if wish.method is Method.STORED and wish.format in own_ops.DENSE_FORMATS and is_plain_matmul(weight):
            is_float = weight.tensor.dtype is ir.DataType.FLOAT  # products in other types stay what they are
            return Placement(Method.PACKED, wish.format, None) if is_float else wish
        return needs_plain_matmul(weight, wish)

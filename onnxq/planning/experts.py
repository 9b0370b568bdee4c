"""Which mixtures of experts (com.microsoft.MoE) can be packed as QMoE."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import formats
from onnxq.model.weights import weights_of
from onnxq.plan import Method
from onnxq.runtime import known
from onnxq.targets import Target


def refusal(node: ir.Node, word: str, block: int | None, target: Target) -> str:
    """Why the experts of this MoE cannot be packed so; empty if they can."""
    if not target.has_kernel(Method.PACKED, "MoE"):
        return "the target has no QMoE"
    weights, format = list(weights_of(node)), formats.get(word)
    if any(value is not None for value in node.inputs[known.EXPERT_INPUTS :]):
        return "QMoE has no third product on processors"
    if len(weights) != 2:
        return "the experts' weights are not constant"
    if weights[0].tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return "QMoE computes in float32 and float16"
    if format.bits not in known.EXPERT_BITS or not format.is_integer or format.has_minimum:
        return f"QMoE does not read {word}"
    if block is None or any(weight.shape[2] % block for weight in weights):
        return f"QMoE wants rows of whole blocks of {block}"
    return ""

"""Weights that are infinite, or no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.encoding import lazy
from onnxq.model import graph

#: What is multiplied with them, or divided by them, is lost. Elsewhere -inf hides scores, and NaN may stand for what is
#: missing.
_OPS = frozenset(
    (
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "PRelu"),
        *("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"),
        *("RMSNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "Attention"),
        *("SkipSimplifiedLayerNormalization", "FusedConv", "FusedGemm", "FusedMatMul", "EmbedLayerNormalization"),
    )
)
#: Numbers that are looked at together.
_PIECE = 1 << 22


class NotFinite(Rule):
    """Trained too fast, or converted to float16, whose largest number is 65504: no use in quantizing them."""

    severity = Severity.ERROR
    what = "a weight is infinite, or no number"
    why = "what is computed with it is no number either, and no scale fits its channel"
    fix = "export the model again from parameters that are finite; in float16, numbers over 65504 are not"

    def find(self, patient: Patient) -> Iterator[Finding]:
        seen: set[int] = set()
        for node in patient.nodes:
            for value in node.inputs if node.op_type in _OPS else ():
                tensor = graph.constant(value)
                if value is None or tensor is None or id(value) in seen or tensor.dtype not in graph.FLOATS:
                    continue
                seen.add(id(value))
                count = _count(tensor)
                if count:
                    yield self.at(node.name or "", f"{count} of {tensor.size} numbers of '{value.name}' are not finite")


def _count(tensor: ir.TensorProtocol) -> int:
    """How many of its numbers are not finite."""
    x = tensor.numpy().reshape(-1)
    count = sum(int((~np.isfinite(x[start : start + _PIECE])).sum()) for start in range(0, x.size, _PIECE))
    del x
    lazy.release(tensor)
    return count

"""onnx-25: standard operators with the types of opset 25, for runtimes that have them."""

from __future__ import annotations

from onnxq import formats
from onnxq.model.weights import Weight
from onnxq.plan import Choice, Method
from onnxq.targets import Target
from onnxq.targets.onnx import TWO_BITS, onnx

#: Formats of weights that are spelled in types which target onnx does without.
NEW = ("e2m1", "float8_e4m3", "float8_e5m2", "mxfp4", "nvfp4")


class onnx_25(onnx):
    """What target onnx is, but that weights in floats of 4 and 8 bits are FLOAT4E2M1 and FLOAT8 behind a
    DequantizeLinear: mxfp4 with scales in FLOAT8E8M0, nvfp4 with scales in FLOAT8E4M3FN which share a factor, e2m1 with
    scales in floats. onnxruntime 1.31 has no kernels for the 4-bit ones on processors: the same numbers are run in
    older types, and what the new ones stand for is compared by ONNX's reference implementation.
    """

    name = "onnx-25"
    spelled = NEW
    passes = (
        "insert_qdq",
        "quantize_dynamically",
        "replace_matmuls",
        "spell_floats",
        "store_weights",
        "convert_to_half",
    )

    def opset_for(self, scheme: str) -> int:
        return TWO_BITS

    def refusal(self, word: str) -> str:
        return "" if word in NEW else super().refusal(word)

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method is Method.PACKED and wish.format in NEW:
            wish = wish.to(Method.STORED, formats.get(wish.format).name, wish.block, wish.reason)
            return Target.place(self, weight, wish)
        return super().place(weight, wish)

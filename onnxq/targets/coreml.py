"""coreml: Apple's Core ML, by onnxruntime's provider in the ML Program format."""

from __future__ import annotations

from onnxq.model.weights import Weight
from onnxq.plan import COMPUTING, Choice, in_float
from onnxq.targets import Target


class coreml(Target):
    """By the provider's list of operators (`coreml_supported_mlprogram_ops.md`): none of them reads integers or packed
    weights, so weights are small in the file and floats once it is loaded; Core ML computes in float16 by itself.
    """

    name = "coreml"
    consumer = "CoreMLExecutionProvider"
    least_bits = 4
    auto = ("fp16", "fp16")

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method in COMPUTING:
            wish = in_float(wish, "Core ML's provider reads no packed or int8 weights: unpacked when the model loads")
        return super().place(weight, wish)

"""onnxq: a quantization compiler for ONNX models.

import onnxq

result = onnxq.quantize("model.onnx", "model.int8.onnx", "w8a8", data="calibration.npz")
print(result.check.sqnr, result.check.latency_ratio)
"""

from __future__ import annotations

from onnxq.errors import OnnxqError
from onnxq.folders import FolderResult, quantize_folder
from onnxq.library import ops_library, session
from onnxq.pipeline import Result, quantize
from onnxq.plan import Plan, load_plan
from onnxq.recipe import Recipe, Rule, load_recipe
from onnxq.version import __version__

__all__ = [
    "FolderResult",
    "OnnxqError",
    "Plan",
    "Recipe",
    "Result",
    "Rule",
    "__version__",
    "load_plan",
    "load_recipe",
    "ops_library",
    "quantize",
    "quantize_folder",
    "session",
]

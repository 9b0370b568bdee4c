"""onnxq: a quantization compiler for ONNX models.

import onnxq

result = onnxq.quantize("model.onnx", "model.int8.onnx", "w8a8", data="calibration.npz")
print(result.check.sqnr, result.check.latency_ratio)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnxq.version import __version__

if TYPE_CHECKING:
    from onnxq.checking.compare import check
    from onnxq.checking.result import Result
    from onnxq.checkpoints.linear4bit import Linear4Bit
    from onnxq.errors import Bug, OnnxqError
    from onnxq.folders import FolderResult, quantize_folder
    from onnxq.frontier import Frontier, search
    from onnxq.pipeline import quantize
    from onnxq.plan import Plan, load_plan
    from onnxq.recipe import Recipe, Rule, load_recipe
    from onnxq.runtime.library import ops_library, session

__all__ = [
    "Bug",
    "FolderResult",
    "Frontier",
    "Linear4Bit",
    "OnnxqError",
    "Plan",
    "Recipe",
    "Result",
    "Rule",
    "__version__",
    "check",
    "load_plan",
    "load_recipe",
    "ops_library",
    "quantize",
    "quantize_folder",
    "search",
    "session",
]

#: Where names come from. They are imported when they are asked for: the command line forks off before that
#: (runtime/supervisor.py).
_HOMES = {
    "Bug": "errors",
    "FolderResult": "folders",
    "Frontier": "frontier",
    "Linear4Bit": "checkpoints.linear4bit",
    "OnnxqError": "errors",
    "Plan": "plan",
    "Recipe": "recipe",
    "Result": "checking.result",
    "Rule": "recipe",
    "check": "checking.compare",
    "load_plan": "plan",
    "load_recipe": "recipe",
    "ops_library": "runtime.library",
    "quantize": "pipeline",
    "quantize_folder": "folders",
    "search": "frontier",
    "session": "runtime.library",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"onnxq.{_HOMES[name]}"), name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"onnxq.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"onnxq.{name}":
                raise
    raise AttributeError(f"module 'onnxq' has no attribute '{name}'")

"""Training with the quantization in place: an ONNX graph as a module of torch, whose weights, scales and biases learn.

torch is needed in this folder and nowhere else: pip install 'onnxq[train]'. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxq.training.graph.module import GraphModule, module
    from onnxq.training.layers import QuantConv2d, QuantLinear, calibrating, export, replace_layers
    from onnxq.training.run import train
    from onnxq.training.settings import Settings

__all__ = [
    "GraphModule",
    "QuantConv2d",
    "QuantLinear",
    "Settings",
    "calibrating",
    "export",
    "module",
    "replace_layers",
    "train",
]

_HOMES = {
    "GraphModule": "graph.module",
    "QuantConv2d": "layers",
    "QuantLinear": "layers",
    "Settings": "settings",
    "calibrating": "layers",
    "export": "layers",
    "module": "graph.module",
    "replace_layers": "layers",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require_torch()
        return getattr(importlib.import_module(f"onnxq.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__


def require_torch() -> None:
    """Refuse to train where there is no torch.

    Raises:
        MissingRuntime: it is not installed.
    """
    from onnxq.errors import MissingRuntime, is_of_memory

    try:
        import torch  # noqa: F401
    except ImportError as error:
        if is_of_memory(error):
            raise
        raise MissingRuntime("training needs torch, which is not installed: pip install 'onnxq[train]'") from None

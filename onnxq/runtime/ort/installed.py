"""The onnxruntime that is installed, which is imported when it is first asked for."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Any

from onnxq.errors import MissingRuntime, first_line


def require() -> Any:
    """The onnxruntime module.

    From 1.29 on it tells its maker of the models that it opens (names, hashes, operators: its Privacy.md), unless a
    variable is set before it is loaded. Models are their owners' business; who wants it sets that variable to 0.

    Raises:
        MissingRuntime: it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        if _is_installed("onnxruntime"):
            raise MissingRuntime(f"onnxruntime is installed, but cannot be loaded: {first_line(error)}") from None
        raise MissingRuntime(
            "onnxruntime is not installed: pip install 'onnxq[cpu]' (or 'onnxq[gpu]' for NVIDIA GPUs, never both)"
        ) from None
    return onnxruntime


def version() -> str:
    """Of onnxruntime; empty where it is not installed."""
    try:
        return str(require().__version__)
    except MissingRuntime:
        return ""


def providers() -> tuple[str, ...]:
    """The execution providers of the onnxruntime that is installed; none where it is not."""
    try:
        return tuple(require().get_available_providers())
    except MissingRuntime:
        return ()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # what stands in its place has no spec
        return False


def reason(error: Exception) -> str:
    """What an exception of onnxruntime says, without where in its sources it was thrown."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed: ?)?", "", text)
    return re.sub(r"/\S+:\d+ .*?\)( const)? (?=\S)", "", text)  # the C++ function that threw

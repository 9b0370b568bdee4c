"""Folders of models that one program loads together: what they hold, and how all of it is quantized at once."""

from __future__ import annotations

from onnxq.folders.quantize import quantize_folder
from onnxq.folders.result import FolderResult, PartResult

__all__ = ["FolderResult", "PartResult", "quantize_folder"]

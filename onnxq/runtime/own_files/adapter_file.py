"""onnxruntime's adapter files (`.onnx_adapter`): named arrays that a run takes for inputs of the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData, first_line
from onnxq.files import limits
from onnxq.runtime.ort.installed import require

SUFFIX = ".onnx_adapter"
#: What files say of themselves; nobody looks at it but their reader.
_VERSION = 1


def read_adapter_file(path: Path) -> dict[str, NDArray]:
    """The arrays in the file, by name.

    Raises:
        BadData: there is none, it is damaged, or holds a type that numpy does not have.
        MissingRuntime: onnxruntime is not installed.
    """
    limits.require_file(path, BadData)
    limits.require_text_name(path, BadData)
    try:
        found = require().AdapterFormat.read_adapter(str(path)).get_parameters()
        # What is returned lies in memory of the file that was opened.
        return {str(name): np.array(value.numpy()) for name, value in found.items()}
    except (RuntimeError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise BadData(f"'{path}' cannot be read as an adapter of onnxruntime: {_reason(error)}") from None


def write_adapter_file(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write `arrays` to a new file.

    Raises:
        MissingRuntime: onnxruntime is not installed.
    """
    onnxruntime = require()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}
    made = onnxruntime.AdapterFormat()
    made.set_adapter_version(_VERSION)
    made.set_model_version(_VERSION)
    made.set_parameters(values)
    made.export_adapter(str(path))


def _reason(error: Exception) -> str:
    """The end of onnxruntime's sentence, without the file and line that it comes from."""
    line = first_line(error)
    return line.rpartition(") ")[2] if "/onnxruntime_src/" in line else line

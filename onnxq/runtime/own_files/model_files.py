"""Models as onnxruntime is to open them: as what onnxq took them for, whatever else they might be.

onnx tells by its name whether a model is protobuf or text. onnxruntime takes every file for protobuf, but for its own
format where it is called `.ort`, and bytes in memory where they say so: a file of a stranger may be two models.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import onnx
from onnx import serialization

from onnxq.files import limits

#: How a file of onnxruntime's own format is called, and what it says of itself behind its first four bytes.
ORT_SUFFIX = ".ort"
#: Of onnx's own text, which it warns of.
_EXPERIMENTAL = (".onnxtxt", ".onnxtext")
_ORT = b"ORTM"
_PROTOBUF = "protobuf"


def is_text(path: Path) -> bool:
    """Whether onnx reads the model at `path` as JSON or text."""
    suffix = os.path.splitext(path)[1]  # as onnx does: `Path.suffix` of '...json' is another one
    return (serialization.registry.get_format_from_file_extension(suffix) or _PROTOBUF) != _PROTOBUF


def is_ort(path: Path) -> bool:
    """Whether onnxruntime takes the file at `path` for one of its own format: by its name and by what it says."""
    return path.suffix == ORT_SUFFIX and says_ort(path)


def says_ort(path: Path) -> bool:
    """Whether the file at `path` says, whatever its name, that it is of onnxruntime's own format."""
    with path.open("rb") as file:
        return file.read(8)[4:] == _ORT


def parsed(path: Path) -> onnx.ModelProto:
    """The file as onnx reads it by its name: protobuf, JSON or text. External data are left where they are.

    Raises:
        Exception: it does not parse; the parsers of protobuf, JSON and text have none in common.
    """
    if path.suffix not in _EXPERIMENTAL:
        return onnx.load(path, load_external_data=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this format is experimental
        return onnx.load(path, load_external_data=False)


def source_of(path: Path, options: Any) -> str | bytes:
    """What a session is opened on, with `options`, to which is added what it takes.

    Raises:
        BadModel: the path is no text.
    """
    limits.require_text_name(path)
    own = path.is_file() and is_ort(path)
    options.add_session_config_entry("session.load_model_format", "ORT" if own else "ONNX")
    if not is_text(path):
        return str(path)
    folder = str(path.absolute().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return parsed(path).SerializeToString()

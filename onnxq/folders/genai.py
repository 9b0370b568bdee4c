"""Folders of onnxruntime-genai: the models that `genai_config.json` names, and how it is told of a library."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnxq.errors import BadModel
from onnxq.files import limits
from onnxq.runtime import library

KIND = "onnxruntime-genai"
CONFIG = "genai_config.json"
LIBRARY = "custom_ops_library"


def models(folder: Path, there: Iterable[Path]) -> set[Path]:
    """The models that the folder's configuration names, of those that are `there`; relative to the folder.

    Raises:
        BadModel: it cannot be read, names no model, one that is not there or one outside the folder.
    """
    found = {_inside(folder, place["filename"]) for place in _places(_read(folder))}
    lacking = min(found - {*there}, default=None)
    if lacking is not None:
        raise BadModel(f"'{folder / CONFIG}' names '{lacking}', which is not there, or in a hidden folder")
    if not found:
        raise BadModel(f"'{folder / CONFIG}' names no model")
    return found


def register_library(folder: Path, parts: Iterable[Path]) -> Path | None:
    """Have onnxruntime-genai load the compiled operators for these models: the library is copied into the folder,
    where it takes one by its bare file name, and the configuration names it.

    Returns:
        The library's name; None if there are no such models.

    Raises:
        MissingRuntime: the library was not built.
        BadModel: the configuration names another library already.
    """
    wanted = set(parts)
    if not wanted:
        return None
    config, source = _read(folder), library.ops_library()
    for place in list(_places(config)):  # an object may be added on the way
        if _inside(folder, place["filename"]) in wanted:
            # A part without options of its own runs with the decoder's.
            options = place.get("session_options")
            if options is None:
                options = _object(_object(config["model"], "decoder", folder), "session_options", folder)
            elif not isinstance(options, dict):
                raise BadModel(f"'{folder / CONFIG}': session_options is {limits.json_word(options)}, not an object")
            if options.setdefault(LIBRARY, source.name) != source.name:
                raise BadModel(
                    f"'{folder / CONFIG}' sets {LIBRARY} to {options[LIBRARY]} already, and there can be only one; "
                    "use target ort-cpu, which needs none"
                )
    shutil.copyfile(source, folder / source.name)
    write_json(folder / CONFIG, config, indent=4)
    return Path(source.name)


def write_json(path: Path, table: Any, indent: int) -> None:
    """As people write it; what no encoding has, such as half of a pair of surrogates, is escaped."""
    try:
        raw = json.dumps(table, indent=indent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raw = json.dumps(table, indent=indent).encode()
    path.write_bytes(raw + b"\n")


def _object(table: dict[str, Any], key: str, folder: Path) -> dict[str, Any]:
    """What is at `key`; an empty object if nothing was."""
    found = table.setdefault(key, {})
    if not isinstance(found, dict):
        raise BadModel(f"'{folder / CONFIG}': {key} is {limits.json_word(found)}, not an object")
    return found


def _read(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = limits.parse_json(limits.read_text(path, "", error=BadModel))
    except ValueError as error:
        raise BadModel(f"'{path}' is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise BadModel(f"'{path}' is not a configuration of onnxruntime-genai: it has no object 'model'")
    return config


def _places(config: Any) -> Iterator[dict[str, Any]]:
    """Every object, however deep, whose `filename` is a model: decoder, vision, the stages of a pipeline …"""
    if isinstance(config, dict):
        name = config.get("filename")
        if isinstance(name, str) and name.endswith(".onnx"):
            yield config
    children = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    for child in children:
        yield from _places(child)


def _inside(folder: Path, name: str) -> Path:
    """A file's path in the folder, as the configuration names it."""
    file = Path(os.path.normpath(name))
    if file.is_absolute() or ".." in file.parts:
        raise BadModel(f"'{folder / CONFIG}' names '{name}', outside the folder; put the model into the folder")
    if not (folder / file).is_file():
        raise BadModel(f"'{folder / CONFIG}' names '{name}', which is not there")
    return file

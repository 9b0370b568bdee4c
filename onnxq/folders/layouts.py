"""Where the files of a result lie: as in the folder that was given, or as transformers.js names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.errors import BadModel, BadRecipe
from onnxq.files import limits
from onnxq.folders import genai
from onnxq.folders.contents import Folder, Part

KEEP_NAMES, TRANSFORMERS_JS = "same", "transformers.js"
LAYOUTS = (KEEP_NAMES, TRANSFORMERS_JS)

#: The suffix by which transformers.js finds a precision (its `dtype`), by scheme.
_SUFFIXES = {
    "w8a8": "_quantized",
    "w8a8-dynamic": "_quantized",
    "w8a16": "_int8",
    "w4a16": "_q4",
    "nf4": "_bnb4",
    "fp4": "_bnb4",
    "fp16": "_fp16",
    "int8": "_int8",
    "uint8": "_uint8",
    "int4": "_q4",
    "uint4": "_q4",
}
_DTYPES = {"_quantized": "q8"}


def files_of(parts: Sequence[Part], layout: str, scheme: str) -> dict[str, Path]:
    """Where each part goes, by its name, relative to the result.

    Raises:
        BadRecipe: transformers.js has no name for the scheme, or one name for two parts.
    """
    takers: dict[Path, Part] = {}
    for part in parts:
        file = _file_of(part, layout, scheme)
        other = takers.setdefault(file, part)
        if other is not part:
            raise BadRecipe(
                f"'{other.file}' and '{part.file}' would both become '{file}' in the layout {layout}; "
                f"move one of them elsewhere, or give --layout {KEEP_NAMES}"
            )
    return {part.name: file for file, part in takers.items()}


def _file_of(part: Part, layout: str, scheme: str) -> Path:
    if layout == KEEP_NAMES:
        return part.file
    if scheme not in _SUFFIXES:
        raise BadRecipe(f"transformers.js has no name for '{scheme}'; it has some for {', '.join(_SUFFIXES)}")
    folder = part.file.parent
    folder = folder if "onnx" in folder.parts else folder / "onnx"
    return folder / f"{part.file.stem}{_SUFFIXES[scheme]}.onnx"


def data_of(part: Part, file: Path, layout: str, has_data: bool) -> Path | None:
    """The file of external data that a part written to `file` is to have; None to leave that as it was written.

    Args:
        has_data: whether there are any now.
    """
    if layout == TRANSFORMERS_JS:
        return file.with_name(f"{file.name}_data") if part.data or has_data else None
    return part.data[0] if len(part.data) == 1 else None


def dtype_of(scheme: str) -> str:
    """What transformers.js calls the precision of files with this scheme's suffix."""
    suffix = _SUFFIXES[scheme]
    return _DTYPES.get(suffix, suffix[1:])


def tell_of_data(folder: Path, files: Sequence[Path]) -> None:
    """Have the configuration for transformers.js say which models have a file of external data."""
    if not files:
        return
    path = folder / "config.json"
    try:
        config = limits.parse_json(limits.read_text(path, "", error=BadModel))
        own = config.setdefault("transformers.js_config", {})
        known = own.get("use_external_data_format")
        # One word for all models of the folder would be about the ones that are not in the result.
        own["use_external_data_format"] = (known if isinstance(known, dict) else {}) | {f.name: True for f in files}
    except (BadModel, ValueError, AttributeError, TypeError):
        raise BadModel(f"'{path}' has to say which models have external data, and is not there or no object") from None
    genai.write_json(path, config, indent=2)


def require_layout(layout: str, folder: Folder) -> None:
    """
    Raises:
        BadRecipe: no such layout, or not one for such a folder.
    """
    if layout not in LAYOUTS:
        raise BadRecipe(f"unknown layout '{layout}'; choose one of {', '.join(LAYOUTS)}")
    if layout == TRANSFORMERS_JS and folder.kind not in ("transformers", "models"):
        raise BadRecipe(f"{folder.path} is a folder of {folder.kind}, which transformers.js does not load")

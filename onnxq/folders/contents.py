"""What a folder holds: models (its parts), files that go with them, and files that are not wanted in the result."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from onnxq.errors import BadModel
from onnxq.files.data_files import locations
from onnxq.folders import genai
from onnxq.model.load import external_tensors, is_quantized, load_model

#: Endings by which programs and people name other precisions of a model that lies beside them: model_q4.onnx.
_VARIANT = re.compile(r"q?u?int\d+.*|q\d.*|fp16|bf16|float16|fp8.*|bnb4|quantized|optimized|O[1-4]")


@dataclass(frozen=True)
class Part:
    """A model of a folder.

    Attributes:
        name: what it is called in reports and patterns: `unet` of unet/model.onnx, `encoder_model` of
            onnx/encoder_model.onnx.
        file: the model, relative to the folder.
        data: its files of external data, relative to the folder.
        quantized: what shows that it is quantized already; None if nothing does.
    """

    name: str
    file: Path
    data: tuple[Path, ...]
    quantized: str | None


@dataclass(frozen=True)
class Folder:
    """What `open_folder` found; paths are relative to `path`.

    Attributes:
        kind: whose layout it is: onnxruntime-genai, diffusers, transformers or models.
        others: files that go with the models: configurations, tokenizers.
        left_out: files that are not for the result, each with the reason.
        read_too: files of data of the parts that models among `others` read as well.
    """

    path: Path
    kind: str
    parts: tuple[Part, ...]
    others: tuple[Path, ...]
    left_out: dict[Path, str]
    read_too: frozenset[Path] = frozenset()

    def source(self, part: Part) -> Path:
        return self.path / part.file


def open_folder(path: str | Path, *, variants: bool = False) -> Folder:
    """The parts of the folder at `path`, and everything else in it.

    Args:
        variants: take files that are other precisions of a model beside them for files that go with it.

    Raises:
        BadModel: no folder, no models in it, or one that cannot be read; files that lie outside it.
    """
    path = Path(path)
    if not path.is_dir():
        raise BadModel(f"'{path}' is not a folder" if path.exists() else f"'{path}': no such folder")
    left_out: dict[Path, str] = {}
    files = sorted(_files(path, left_out))
    models = [file for file in files if file.suffix == ".onnx"]
    kind = _kind(path, models)
    wanted = _wanted(path, kind, models)
    if not wanted:
        raise BadModel(f"'{path}' holds no models: there is no .onnx file in it")
    names = _names(wanted)
    parts = tuple(_part(path, names[file], file) for file in wanted)
    taken = {file for part in parts for file in (part.file, *part.data)}
    for file in (file for file in models if file not in names):
        why = "named by no part of genai_config.json" if kind == genai.KIND else "another precision of a part"
        extra = ({file, *_data_of(path, file)} & {*files}) - taken
        left_out.update(dict.fromkeys(() if variants else sorted(extra), why))
    others = [file for file in files if file not in taken and file not in left_out]
    read = {data for file in others if file.suffix == ".onnx" for data in _data_of(path, file)}
    read_too = frozenset(read & {data for part in parts for data in part.data})
    return Folder(path, kind, parts, (*others, *sorted(read_too)), left_out, read_too)


def is_variant_of(name: str, base: str) -> bool:
    """Whether a part is called like another one in another precision, as `decoder_model_q4` is of `decoder_model`."""
    return name.startswith(f"{base}_") and _VARIANT.fullmatch(name[len(base) + 1 :]) is not None


def _files(path: Path, left_out: dict[Path, str]) -> Iterator[Path]:
    """Every file below `path`, relative to it; what cannot be copied is refused, hidden folders are left out."""
    for where, folders, files in os.walk(path, onerror=_refuse):
        here = Path(where)
        for name in list(folders):
            if (here / name).is_symlink():
                raise BadModel(f"'{here / name}' is a link to a folder, which is not followed; put the folder there")
            if name.startswith("."):
                folders.remove(name)
                left_out[(here / name).relative_to(path)] = "a hidden folder"
        for name in files:
            _require_file(path, here / name)
            yield (here / name).relative_to(path)


def _refuse(error: OSError) -> None:
    raise BadModel(f"'{error.filename}' cannot be read: {error.strerror}")


def _require_file(path: Path, file: Path) -> None:
    """A regular file of this folder that can be read; or of the store beside it, in a hub's cache of downloads, where
    `snapshots/REVISION/` holds links into `blobs/`."""
    root, found = Path(os.path.realpath(path)), Path(os.path.realpath(file))  # which, unlike resolve(), takes circles
    stores = [root] + ([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])
    if file.is_symlink() and not any(found.is_relative_to(store) for store in stores):
        raise BadModel(f"'{file}' is a link to '{found}', outside the folder; put the file itself there, or remove it")
    if not found.is_file():
        what = "is a link to a file that is not there" if file.is_symlink() else "is not a file"
        raise BadModel(f"'{file}' {what}; remove it from the folder")
    if not os.access(found, os.R_OK):
        raise BadModel(f"'{file}' cannot be read: Permission denied")


def _kind(path: Path, models: list[Path]) -> str:
    if (path / genai.CONFIG).is_file():
        return genai.KIND
    if (path / "model_index.json").is_file():
        return "diffusers"
    in_pieces = any(file.stem.startswith(("encoder_model", "decoder_model")) for file in models)
    return "transformers" if in_pieces or (path / "config.json").is_file() else "models"


def _wanted(path: Path, kind: str, models: list[Path]) -> list[Path]:
    """The models that are the folder's parts."""
    if kind == genai.KIND:
        return sorted(genai.models(path, models))
    stems = {(file.parent, file.stem) for file in models}

    def is_variant(file: Path) -> bool:
        words = file.stem.split("_")
        return any(
            (file.parent, "_".join(words[:n])) in stems and _VARIANT.fullmatch("_".join(words[n:]))
            for n in range(1, len(words))
        )

    return [file for file in models if not is_variant(file)]


def _names(files: list[Path]) -> dict[Path, str]:
    """A name for each: short where it stays unique."""
    names = {file: _short_name(PurePosixPath(file.with_suffix("").as_posix())) for file in files}
    # A long name may be another model's short one, which gets its long one then.
    while shared := {name for name, count in Counter(names.values()).items() if count > 1}:
        names |= {file: file.with_suffix("").as_posix() for file, name in names.items() if name in shared}
    return names


def _short_name(file: PurePosixPath) -> str:
    folders = [name for name in file.parts[:-1] if name != "onnx"]
    return "/".join(folders if file.name == "model" and folders else [*folders, file.name])


def _part(path: Path, name: str, file: Path) -> Part:
    model = load_model(path / file)
    data = {Path(tensor.path).resolve(): Path(tensor.path) for tensor in external_tensors(model)}
    relative = sorted(Path(os.path.normpath(each.relative_to(path))) for each in data.values())
    return Part(name, file, tuple(relative), is_quantized(model))


def _data_of(path: Path, file: Path) -> set[Path]:
    """External data of a model that is not looked into any further; none if it cannot be read."""
    return {Path(os.path.normpath(file.parent / each)) for each in locations(path / file)}

"""A checkpoint on disk: one file, or a folder as hubs lay them out, with what its configuration says.

    model.safetensors                  one file, or
    model.safetensors.index.json       {"weight_map": {tensor: file}} and the files that it names, or
    *.gguf, *.npz
    config.json, quantize_config.json  how its weights were quantized

Source: huggingface's transformers (`load_sharded_checkpoint`) for the index; AutoGPTQ for `quantize_config.json`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.boundary import typed
from onnxq.checkpoints.gguf_file import Gguf
from onnxq.checkpoints.tensors import CODES, UNKNOWN, Npz, Outline, Safetensors, Unreadable, open_checkpoint
from onnxq.errors import BadData, BadRecipe, first_line
from onnxq.files import limits, schemas

INDEX = "model.safetensors.index.json"
#: Where tools say how they quantized, the later ones only where the earlier say nothing.
CONFIGS = ("config.json", "quantize_config.json", "quant_config.json")
#: What `config.json` calls it: transformers, compressed-tensors once, MLX.
KEYS = ("quantization_config", "compression_config", "quantization")

#: What says there that the head is the table of words, and which class of transformers it is, which leaves that out
#: where it is so (Gemma, GPT-2), the default of all of them.
TIED, MODEL = "tie_word_embeddings", "model_type"


@dataclass(frozen=True, eq=False)
class Checkpoint(Mapping[str, Any]):
    """The tensors of a checkpoint by name, each read when it is asked for; `Unreadable` where numpy lacks the type.

    Attributes:
        path: the file or folder that the user named.
        shards: by tensor, the open file that holds it.
        files: everything that is read.
        config: how it was quantized, as it says itself; empty where it does not.
        metadata: texts by key, of the file itself or of all of several.
        is_gguf: whether tensors may be quantized ones.
        is_tied: whether the table of words is the head too, if there is none, as `config.json` says or has by default.
        absent: which files of it are not there, as the names of the others tell; empty if all are.
    """

    path: Path
    shards: Mapping[str, Mapping[str, Any]]
    files: tuple[Path, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    is_gguf: bool = False
    is_tied: bool = False
    absent: str = ""

    def __getitem__(self, name: str) -> Any:
        file = self.shards[name]
        unreadable = file.unreadable(name) if isinstance(file, Safetensors) else None
        return file[name] if unreadable is None else unreadable

    def __iter__(self) -> Iterator[str]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)


def outline(tensors: Mapping[str, Any], name: str) -> Outline:
    """Shape and type of a tensor of a checkpoint or of one file; it is read only where no header says them."""
    file = tensors.shards[name] if isinstance(tensors, Checkpoint) else tensors
    if isinstance(file, (Safetensors, Npz)):
        return file.outline(name)
    if isinstance(file, Gguf):
        shape, format = file.outline(name)
        if format is not None or file.is_foreign(name):  # which take time to unpack
            return Outline(shape, CODES)
    found = file[name]
    if isinstance(found, Unreadable):
        return Outline(found.shape, UNKNOWN)
    return Outline(tuple(found.shape), found.dtype.kind if isinstance(found, np.ndarray) else CODES)


@typed
def open_folder_or_file(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`: `.safetensors`, `.npz`, `.gguf`, an index, or a folder of such.

    Raises:
        BadData: there is none, it is damaged, or names files outside its folder.
    """
    path = Path(path)
    if path.name.endswith(".index.json"):
        return _of_index(path, path)
    if not path.is_dir():
        return _of_files(path, [path])
    if os.path.lexists(path / INDEX):
        return _of_index(path, path / INDEX)
    if os.path.lexists(path / "model.safetensors"):
        return _of_files(path, [path / "model.safetensors"])
    for suffix in (".safetensors", ".gguf", ".npz"):
        found = sorted(file for file in path.iterdir() if file.suffix == suffix and file.is_file())
        if len(found) > 1 and suffix != ".safetensors":
            names = ", ".join(file.name for file in found[:8])
            raise BadData(f"'{path}' holds several checkpoints: name one of {names}")
        if found:
            return _of_files(path, found)
    raise BadData(f"'{path}' is a folder without .safetensors, .gguf or .npz files")


def without(checkpoint: Checkpoint, names: Sequence[str], parts: Mapping[str, Collection[str]]) -> Checkpoint:
    """The checkpoint as if it had no tensors of these names, or patterns of names (`*`, `?`).

    Args:
        parts: names of tensors that are several, and these.

    Raises:
        BadRecipe: it has none of one of them anyway.
    """
    gone, known = set[str](), list(dict.fromkeys([*checkpoint, *parts]))
    for name in names:
        found = {*fnmatch.filter(known, name.replace("[", "[[]"))}
        if not found:
            raise BadRecipe(f"'{checkpoint.path}' has no tensor called '{name}', which is to be left out")
        gone = gone.union(found, *(parts.get(each, ()) for each in found))
    shards = {name: file for name, file in checkpoint.shards.items() if name not in gone}
    return dataclasses.replace(checkpoint, shards=shards)


def _of_files(path: Path, files: list[Path]) -> Checkpoint:
    shards: dict[str, Mapping[str, Any]] = {}
    names: dict[str, Path] = {}
    opened = [(file, _opened(file, is_alone=len(files) == 1)) for file in files]
    for file, tensors in opened:
        for name in tensors:
            if name in shards:
                raise BadData(f"'{path}': tensor '{name}' is in '{names[name].name}' and in '{file.name}'")
            shards[name], names[name] = tensors, file
    config, is_tied, read = _config(files[0]) if files[0].suffix == ".safetensors" else ({}, False, ())
    is_gguf, said = isinstance(opened[0][1], Gguf), _metadata(tensors for _, tensors in opened)
    return Checkpoint(path, shards, (*files, *read), config, said, is_gguf, is_tied, _absent(files))


def _absent(files: Sequence[Path]) -> str:
    """What names like model-00002-of-00005.safetensors tell of files that are not among them."""
    found: dict[tuple[str, str], set[str]] = {}
    for file in files:
        if part := re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.\w+", file.name):
            found.setdefault((part[1], part[3]), set()).add(part[2])
    for (stem, count), parts in found.items():
        if len(parts) < int(count):
            return f"of the {int(count)} files of '{stem}' {'one is' if len(parts) == 1 else f'{len(parts)} are'} given"
    return ""


def _metadata(opened: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all files; what the earlier ones say counts."""
    said: dict[str, Any] = {}
    for tensors in opened:
        if isinstance(tensors, (Safetensors, Gguf)):
            said = tensors.metadata | said
    return said


def _opened(file: Path, *, is_alone: bool) -> Mapping[str, Any]:
    with limits.open_file(file, BadData) as raw:
        is_gguf = raw.read(4) == b"GGUF"
    if is_gguf and not is_alone:
        raise BadData(f"'{file}' is a GGUF file, which is no part of a checkpoint of several files: name it alone")
    return Gguf(file) if is_gguf else open_checkpoint(file)


def _of_index(path: Path, index: Path) -> Checkpoint:
    try:
        said = limits.parse_json(limits.read_text(index, "the index ", error=BadData), strict=True)
    except ValueError as error:
        raise BadData(f"'{index}' is not an index of tensors: {first_line(error)}") from None
    try:
        table = schemas.checked(said["weight_map"], dict[str, str])
    except (ValueError, KeyError, TypeError):
        raise BadData(f"'{index}' is not an index of tensors: it has no 'weight_map' of names and files") from None
    # As with a model's data, both may be links into the same store of files.
    folders = {Path(os.path.realpath(index.parent)), Path(os.path.realpath(index)).parent}
    opened: dict[str, Mapping[str, Any]] = {}
    for name, word in table.items():
        if word in ("", ".", "..") or any(mark in word for mark in "/\\\0:"):
            raise BadData(f"'{index}' says that tensor '{name}' is in '{word}', which is no file beside it")
        if word not in opened:
            if Path(os.path.realpath(index.parent / word)).parent not in folders:
                raise BadData(f"'{index}' says that tensor '{name}' is in '{word}', a link out of the folder")
            opened[word] = _opened(index.parent / word, is_alone=False)
        if name not in opened[word]:
            raise BadData(f"'{index}' says that tensor '{name}' is in '{word}', which does not hold it")
    if not table:
        raise BadData(f"'{index}' names no tensors")
    config, is_tied, read = _config(index)
    files = (index, *(index.parent / word for word in opened), *read)
    shards = {name: opened[word] for name, word in table.items()}
    return Checkpoint(path, shards, files, config, _metadata(opened.values()), is_tied=is_tied)


def _config(beside: Path) -> tuple[Mapping[str, Any], bool, tuple[Path, ...]]:
    """What the files beside a checkpoint say of its quantization and of its head, and which of them were read."""
    read: list[Path] = []
    is_tied = False
    for word in CONFIGS:
        file = beside.parent / word
        if not os.path.lexists(file):
            continue
        read.append(file)
        try:
            said = limits.parse_json(limits.read_text(file, "the configuration ", error=BadData))
        except ValueError as error:
            raise BadData(f"the configuration '{file}' cannot be read: {error}") from None
        if not isinstance(said, dict):
            raise BadData(f"the configuration '{file}' is {limits.json_word(said)}, not an object")
        is_tied |= said.get(TIED, word == CONFIGS[0] and bool(said.get(MODEL))) is True
        found = next((said[key] for key in KEYS if key in said), None) if word == CONFIGS[0] else said
        if isinstance(found, dict) and found:
            return found, is_tied, tuple(read)
    return {}, is_tied, tuple(read)

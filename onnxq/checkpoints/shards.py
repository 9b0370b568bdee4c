"""Safetensors written one tensor at a time, in one file or in several with an index, as transformers lays them out.

    STEM.safetensors, or
    STEM-00001-of-00003.safetensors …, STEM.safetensors.index.json   {"metadata": {"total_size"}, "weight_map"}

Source: the format's specification in the README of huggingface/safetensors; transformers' `save_pretrained`.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.tensors import safetensors_type
from onnxq.errors import BadModel, BadOutput
from onnxq.files import limits, staging

SUFFIX, INDEX = ".safetensors", ".safetensors.index.json"
#: What is said of the tensors of a file, by name, as the texts that the file has for metadata.
Finish = Callable[[dict[str, Any]], dict[str, str]]


class Claimed:
    """Names of the tensors of one checkpoint: each once.

    Args:
        taken: those that no tensor may have.
    """

    def __init__(self, taken: tuple[str, ...] = ()) -> None:
        self._reserved = {*taken, "__metadata__"}
        self._names = set[str]()

    def claim(self, name: str) -> None:
        """Take one.

        Raises:
            BadModel: it is taken, or no name.
        """
        if name in self._reserved:
            raise BadModel(f"an array cannot be called '{name}' in a file, where that is the name of something else")
        if name in self._names:
            raise BadModel(f"two arrays would be '{name}' in the file: give one another name")
        if "\0" in name or len(name.encode("utf-8", "replace")) > limits.NAME_BYTES:
            raise BadModel(f"an array cannot be called '{name}' in a file: the name is too long, or not text")
        self._names.add(name)


class Shards:
    """Writes tensors to files of `folder`, a new one whenever the next would make one longer than `most` bytes.

    Args:
        folder: of this writer alone.
        finish: makes the metadata of each file.
        most: bytes of tensors in a file; a group that is longer has one of its own. None: one file.
        taken: names that no tensor may have.
    """

    def __init__(self, folder: Path, finish: Finish, most: int | None = None, taken: tuple[str, ...] = ()) -> None:
        self._folder, self._finish, self._most = folder, finish, most
        self._names, self._places = Claimed(taken), dict[str, int]()
        self._headers: list[dict[str, Any]] = []
        self._said: dict[str, Any] = {}
        self._nbytes = self._total = 0

    def add(self, tensors: Mapping[str, NDArray], said: Mapping[str, Any]) -> None:
        """Write tensors that belong together, to one file.

        Raises:
            BadModel: a name is taken or too long, or safetensors does not have the type.
        """
        nbytes = sum(array.nbytes for array in tensors.values())
        if not self._headers or (self._most is not None and self._nbytes and self._nbytes + nbytes > self._most):
            self._close()
            self._headers.append({})
            self._nbytes = 0
        header = self._headers[-1]
        with self._part().open("ab") as file:
            for name, array in tensors.items():
                self._names.claim(name)
                self._places[name] = len(self._headers) - 1
                begin = file.tell()
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                kind = safetensors_type(array.dtype)
                header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, file.tell()]}
        self._said |= said
        self._nbytes += nbytes
        self._total += nbytes

    def close(self, stem: str) -> list[Path]:
        """The files, the one that names the others last."""
        if not self._headers:
            self._headers.append({})
            self._part().touch()
        self._close()
        count = len(self._headers)
        names = [f"{stem}-{i + 1:05d}-of-{count:05d}{SUFFIX}" if count > 1 else f"{stem}{SUFFIX}" for i in range(count)]
        paths = [self._whole(i).rename(self._folder / name) for i, name in enumerate(names)]
        if count > 1:
            table = {name: names[i] for name, i in self._places.items()}
            paths.append(self._folder / f"{stem}{INDEX}")
            paths[-1].write_text(json.dumps({"metadata": {"total_size": self._total}, "weight_map": table}, indent=2))
        return paths

    def _close(self) -> None:
        if not self._headers:
            return
        text = json.dumps({"__metadata__": self._finish(self._said)} | self._headers[-1]).encode()
        text += b" " * (-len(text) % 8)
        part, self._said = self._part(), {}
        with self._whole(len(self._headers) - 1).open("xb") as whole:
            whole.write(struct.pack("<Q", len(text)) + text)
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 24)
        part.unlink()

    def _part(self) -> Path:
        return self._folder / f"{len(self._headers)}.part"

    def _whole(self, index: int) -> Path:
        return self._folder / f"{index}.whole"


def move_all(staged: Sequence[Path], output: Path, *, replace: bool, claim: Callable[[Path], None]) -> list[Path]:
    """Move a single file to `output`, or several beside it, the one that names the others last.

    Args:
        claim: of each of several: raises if it must not be written.

    Raises:
        BadOutput: one is there and `replace` is off, or must not be written; or see `require_one_form`.
    """
    targets = [output] if len(staged) == 1 else [output.with_name(path.name) for path in staged]
    require_one_form(output, is_one=len(targets) == 1)
    if len(targets) > 1:
        for target in targets:
            claim(target)
    staging.move_set(list(zip(staged, targets, strict=True)), replace=replace)
    return targets


def require_one_form(output: Path, *, is_one: bool) -> None:
    """Refuse to leave an older checkpoint of the same name beside a new one, as one file beside several: what loads
    them takes either.

    Raises:
        BadOutput: there is one.
    """
    other = output.with_name(f"{output.stem}{INDEX}") if is_one else output
    if output.suffix == SUFFIX and other.exists():
        raise BadOutput(f"'{other}' would stay beside it, and be loaded in its place: remove it, or give another -o")

"""The data files of models that `onnxq` wrote: how they are called, who refers to them, and when they may go.

A data file is called by a hash of its bytes (`model.onnx.0123456789abcdef.data`), so old and new data lie side by side
until the model, which is moved last, has changed from one to the other. A journal in the staging folder says which data
files nobody wants unless some model refers to them; whoever removes the folder removes those too.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnxq.errors import OnnxqError
from onnxq.files import faults, limits

JOURNAL = "journal"
#: How a model's file spells where data lie: protobuf's key and value of `StringStringEntryProto`, up to the length.
_LOCATION = b"\n\x08location\x12"
_CHUNK, _LONGEST = 1 << 22, 1 << 13
#: What the file of a model begins with: the field `ir_version`; or another of its fields, as odd writers order them.
_MODEL = b"\x08"
_FIELDS = b"\x08\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca\xd2"
#: How names of data end, and the letters that JSON and protobuf's text spell as they are.
_SUFFIX, _PLAIN = b".data", re.compile(r"[A-Za-z0-9._-]*$")
#: Suffixes of models that onnx reads as JSON or text.
_TEXTS = (".json", ".onnxjson", ".textproto", ".prototxt", ".pbtxt", ".txtpb", ".onnxtxt", ".onnxtext")


def write_journal(folder: Path, files: Iterable[Path]) -> None:
    """Leave in a staging folder which data files may go once no model beside it refers to them.

    Args:
        files: there already, or still in the staging folder, from where they are moved.
    """
    table = {"data": {file.name: _which(file) for file in files}}
    (folder / JOURNAL).write_text(json.dumps(table), encoding="utf-8")


def settle(folder: Path, *, is_own: bool = False) -> bool:
    """Remove the data files that the journal in a staging folder names, and that no model refers to any more.

    Args:
        is_own: this process wrote the journal, so what it names need not be told from what others have there.

    Returns:
        Whether none is left.
    """
    try:
        # A folder that came with somebody's archive may look like one of ours, and hold anything.
        found = (folder / JOURNAL).lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > limits.TEXT_BYTES:
            return True
        table = json.loads((folder / JOURNAL).read_text(encoding="utf-8"))
        files = {str(name): which for name, which in table["data"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True  # nothing was moved yet
    try:
        named = [name for name in files if is_called_by_content(name)]
        known = [name for name in named if is_own or _is_still(folder.parent / name, files[name])]
        for name in _without_those_referred_to(known, folder.parent):
            faults.point("publish.old_data")
            (folder.parent / name).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _which(file: Path) -> list[int]:
    """What tells a file from all others, under any name: nobody else's journal can say it."""
    found = file.lstat()
    return [found.st_ino, found.st_mtime_ns, found.st_size]


def _is_still(file: Path, which: object) -> bool:
    try:
        return _which(file) == which
    except (OSError, ValueError):  # it is gone, or no name
        return False


def own_data(model: Path) -> list[Path]:
    """The data files that `onnxq` wrote for the model at `model`: they lie beside it, it refers to them, and their
    names are of the kind that only its data have. None if there is no model, or it is a link to one elsewhere.
    """
    if model.is_symlink() or not model.is_file():
        return []
    found = [model.with_name(name) for name in locations(model) if _is_of(name, model)]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def data_name(model: Path, digest: str) -> str:
    """What the data file of `model` is called; `digest` is of its bytes."""
    stem = model.name.encode("utf-8", "replace").decode()  # the model holds it, as text
    while len(os.fsencode(stem)) > 255 - len(f".{digest}.data"):
        stem = stem[:-1]
    return f"{stem}.{digest}.data"


def _is_of(name: str, model: Path) -> bool:
    """Whether data of this name are those of `model`: a stranger's may speak of any file."""
    return is_called_by_content(name) and name == data_name(model, name[-len("0123456789abcdef.data") : -len(".data")])


def is_called_by_content(name: str) -> bool:
    """Whether it is a name of data by the hash of their bytes, which no other bytes have, and no other program gives.
    Data called like their model (`model.onnx.data`, as torch has it) may be those of several."""
    return re.fullmatch(r"[^/\0]+\.[0-9a-f]{16}\.data", name) is not None


def _without_those_referred_to(names: Iterable[str], folder: Path) -> list[str]:
    """The names that no model in `folder` speaks of: somebody may have copied one, also as text."""
    left = set(names)
    for path in folder.iterdir() if left else ():
        if path.is_file() and not os.access(path, os.R_OK):
            return []  # it may be a model of somebody else's, which speaks of any
        if is_model(path, _FIELDS) or path.suffix in _TEXTS:
            left -= _spoken_of(left, path)
    return sorted(left)


def _spoken_of(names: Iterable[str], file: Path) -> set[str]:
    """The names that stand anywhere in a file, by their ends of letters that no encoding of text changes."""
    ends = {name: _PLAIN.search(name)[0].encode() for name in names}  # type: ignore[index]
    lengths, found = {len(end) for end in ends.values()}, set[bytes]()
    for block in _blocks(file):
        at = -1
        while (at := block.find(_SUFFIX, at + 1)) >= 0:  # once for all names, of which there may be thousands
            stop = at + len(_SUFFIX)
            found.update(block[max(0, stop - length) : stop] for length in lengths)
    return {name for name, end in ends.items() if end in found}


def is_model(path: Path, begins: bytes = _MODEL) -> bool:
    """Whether a file may be a model, to judge by its name or its first byte, one of `begins`."""
    if path.suffix == ".onnx" or not path.is_file():
        return path.is_file()
    try:
        if not path.stat().st_size:  # one of the kernel's may wait for ever
            return False
        with path.open("rb") as file:
            return (first := file.read(1)) != b"" and first in begins
    except OSError:
        return False


def locations(model: Path) -> set[str]:
    """Where a model's file says that its data lie, wherever in it: graphs, subgraphs, functions, attributes.

    The bytes are searched and not parsed, so that no model is too large or too damaged for it.
    """
    return {name for block in _blocks(model) for name in _locations_in(block)}


def _blocks(file: Path) -> Iterator[bytes]:
    """The bytes of a file, in parts that overlap by more than a path is long; none if it cannot be read."""
    try:
        with limits.open_file(file, OnnxqError) as opened:
            block = b""
            while chunk := opened.read(_CHUNK):
                block = block[-_LONGEST:] + chunk
                yield block
    except (OSError, OnnxqError):  # whoever reads it as a model says what is wrong
        return


def _locations_in(block: bytes) -> set[str]:
    found, at = set(), -1
    while (at := block.find(_LOCATION, at + 1)) >= 0:
        start = at + len(_LOCATION)
        length, shift = 0, 0
        for byte in block[start : start + 2]:  # a varint; paths have less than 4096 bytes
            length |= (byte & 127) << shift
            start, shift = start + 1, shift + 7
            if byte < 128:
                break
        raw = block[start : start + length]
        if len(raw) == length:
            found.add(raw.decode("utf-8", "surrogateescape"))
    return found

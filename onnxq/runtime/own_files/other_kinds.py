"""What a file is that is no ONNX model, told by what it begins with: names promise anything."""

from __future__ import annotations

import zipfile
from pathlib import Path

from onnxq.errors import listed

_EXPORT = "export the model to ONNX first"
_TORCH = f"is a file of torch: {_EXPORT}, by torch.onnx.export"
_KERAS = f"as Keras writes them: {_EXPORT}, e.g. by model.export(…, format='onnx')"
_SAFETENSORS = (
    f"is a safetensors file, weights without a graph: {_EXPORT}; 'onnxq import-weights' puts such weights into an ONNX "
    "model"
)
_PAGE = "is a web page, which a server sent in the place of the file: a browser shows why"
#: What stands at some place of a file, and what that makes it.
_MARKS = (
    (4, b"TFL3", f"is a model of TensorFlow Lite: {_EXPORT}, e.g. by 'python -m tf2onnx.convert --tflite'"),
    (0, b"GGUF", "is a GGUF file: give it to 'onnxq import-weights', with the ONNX model that its weights are for"),
    (0, b"\x89HDF\r\n\x1a\n", f"is an HDF5 file, {_KERAS}"),
)
#: The same, in small letters, of what came around a file, or in its place.
_WRAPPED = (
    (0, b"\x1f\x8b\x08", "is compressed by gzip: unpack it first"),
    (0, b"bzh", "is compressed by bzip2: unpack it first"),
    (0, b"\xfd7zxz\0", "is compressed by xz: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "is compressed by zstd: unpack it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "is an archive of 7-Zip: unpack it first"),
    (257, b"ustar", "is a tar archive: unpack it first"),
    (0, b"<!doctype html", _PAGE),
    (0, b"<html", _PAGE),
)
#: The same by names of members, without their folders, of an archive.
_MEMBERS = {"data.pkl": _TORCH, "archive_format": _TORCH, "model.weights.h5": f"is an archive, {_KERAS}"}
#: Files of protobuf that are none of ONNX's: by their names, for what they begin with may be a model.
_PROTOBUF = {".pb": "TensorFlow: {}, e.g. by tf2onnx", ".mlmodel": "Core ML: {}, from the program it was made of"}
#: What pickles begin with, of the protocols that are in use.
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
#: Bytes that tell what a file is.
_BEGINNING = 300
#: Bytes of a header of safetensors, at most.
_LONGEST = 100_000_000


def what_else(path: Path) -> str:
    """What the file at `path` is and what to do, in words that can follow its name; empty where nobody knows."""
    try:
        start, members = _start(path), _members(path)
    except OSError:
        return ""
    for name, says in _MEMBERS.items():
        if name in members:
            return says
    if _begins_with_header(start):
        return _SAFETENSORS
    if start.startswith(_PICKLES):
        return _TORCH
    if path.suffix in _PROTOBUF:
        return f"is no ONNX model, but by its name one of {_PROTOBUF[path.suffix].format(_EXPORT)}"
    found = next((says for place, mark, says in _MARKS if start[place : place + len(mark)] == mark), "")
    return found or what_around(path)


def what_around(path: Path) -> str:
    """As what the file at `path` came that is neither a model nor a checkpoint, as it is, in words that can follow its
    name; empty where nobody knows."""
    try:
        start, members = _start(path), _members(path)
    except OSError:
        return ""
    if members and all(name.endswith(".npy") for name in members):
        return "is an archive of numpy's arrays: give a model, and such files as its --data"
    if start.startswith(b"PK\x03\x04") and not members:
        return "is an archive, as zip and numpy make them, that is damaged or cut short"
    if members:
        some = [name for name in sorted(members) if Path(name).suffix in (".onnx", ".safetensors")]
        inside = f", which holds {listed([repr(name) for name in some], 3)}" if some else ""
        return f"is a zip archive{inside}: unpack it first"
    start = start.lower()
    return next((says for place, mark, says in _WRAPPED if start[place : place + len(mark)] == mark), "")


def is_pickled(path: Path) -> bool:
    """Whether the file at `path` is a checkpoint of torch, an archive around a pickle or, once, a pickle alone; whoever
    unpickles it runs what code it holds.

    Raises:
        OSError: it cannot be read.
    """
    start = _start(path)
    return "data.pkl" in _members(path) or (start.startswith(_PICKLES) and not _begins_with_header(start))


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_BEGINNING)


def _begins_with_header(start: bytes) -> bool:
    """As safetensors do: a length, which may look like the first bytes of a pickle, and a piece of JSON."""
    return start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= _LONGEST


def _members(path: Path) -> set[str]:
    """Of the archive at `path`, without their folders; none where it is no archive, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.rpartition("/")[2] for name in archive.namelist()}
    except OSError:
        raise
    except Exception:  # zipfile has a dozen kinds
        return set()

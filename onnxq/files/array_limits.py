"""What headers of `.npy` and `.npz` files say is compared with what the files hold, before numpy makes room for it."""

from __future__ import annotations

import math
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from onnxq.errors import BadData, first_line
from onnxq.files import limits, room

#: Headers of numpy are short; its own limit is this.
_HEADER = 10_000
#: In front of a member of an archive: 26 bytes that its table of contents has too, lengths of its name and of the rest.
_LOCAL = struct.Struct("<4s22xHH")
_READ = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class Place:
    """An array in a file, whose bytes lie there as they are, row by row.

    Attributes:
        first: where its first byte is.
    """

    first: int
    shape: tuple[int, ...]
    dtype: np.dtype


def places(path: Path) -> dict[str, Place] | None:
    """Where the arrays of an `.npy` (its name is empty) or `.npz` file lie, none of which is compressed; None: some
    are, or column by column.

    Raises:
        ValueError, OSError, zipfile.BadZipFile: the file is damaged; by the sums of an archive's members too.
    """
    with open(path, "rb") as file:
        if path.suffix.lower() == ".npy":
            found = {"": _place(file, 0, path.stat().st_size)}
        else:
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, path.stat().st_size)
                if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                    return None
                for member in members:
                    _member(archive, member)
                if damaged := archive.testzip():
                    raise ValueError(f"its member '{damaged}' is damaged")
            begins = {each.filename.removesuffix(".npy"): (_begin(file, each.header_offset), each) for each in members}
            found = {name: _place(file, first, each.file_size) for name, (first, each) in begins.items()}
    whole = {name: place for name, place in found.items() if place is not None}
    return whole if len(whole) == len(found) else None


def _begin(file: IO[bytes], at: int) -> int:
    """The first byte of a member of an archive."""
    file.seek(at)
    magic, *lengths = _LOCAL.unpack(file.read(_LOCAL.size))
    if magic != b"PK\3\4":
        raise ValueError("the archive is damaged")
    return at + _LOCAL.size + sum(lengths)


def _place(file: IO[bytes], first: int, size: int) -> Place | None:
    file.seek(first)
    shape, dtype, by_columns = _header(file, first + size)
    return None if by_columns and len(shape) > 1 else Place(file.tell(), shape, dtype)


def header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the array in `file`, which is `size` bytes long.

    Raises:
        ValueError: it is no array of plain numbers or text, or not as long as its header says.
    """
    return _header(file, size)[:2]


def _header(file: IO[bytes], end: int) -> tuple[tuple[int, ...], np.dtype, bool]:
    """The same of the array that ends at `end`, and whether its columns lie one after another."""
    try:
        version = np.lib.format.read_magic(file)
        shape, by_columns, dtype = _READ[version](file, max_header_size=_HEADER)
    except Exception:  # of the tokenizer, the parser, the making of a type …
        raise ValueError("it does not begin with the header of an array") from None
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, not numbers")
    if dtype.kind not in "biufcSUV" or dtype.names is not None:
        raise ValueError(f"it holds values of type {dtype}, not numbers")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in shape):
        raise ValueError(f"its shape is {shape}")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes != end - file.tell():
        raise ValueError(f"its header declares {nbytes} bytes of numbers, the file holds {end - file.tell()}")
    if not is_possible(shape):
        raise ValueError(f"its shape is {shape}")
    return shape, dtype, by_columns


def is_possible(shape: Sequence[int]) -> bool:
    """Whether numpy can have an array of this shape: even where it holds nothing, there is an end to its other axes."""
    return len(shape) <= 64 and math.prod(n for n in shape if n) <= limits.MEMBER_BYTES


def overlapping(spans: Iterable[tuple[int, int, str]]) -> tuple[str, str] | None:
    """Two of the pieces of a file, each (first byte, end, name), that share bytes: a short file could hold any number
    of long arrays."""
    before: tuple[int, int, str] = (0, 0, "")
    for span in sorted(span for span in spans if span[0] < span[1]):
        if span[0] < before[1]:
            return before[2], span[2]
        before = span
    return None


def headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of each array in an `.npz` file, by name.

    Raises:
        BadData: it cannot be opened.
        ValueError: the archive is damaged, a member is no array, or would be far larger than the archive.
    """
    try:
        with limits.open_file(path, BadData) as opened, zipfile.ZipFile(opened) as archive:
            members = _members(archive, path.stat().st_size)
            found = {member.filename.removesuffix(".npy"): _member(archive, member) for member in members}
    except (BadData, ValueError):
        raise
    except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
        raise ValueError(f"the archive is damaged: {first_line(error)}") from None
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in found.values()) > room.memory():
        raise ValueError("its arrays do not fit into this machine's memory")
    return found


def _members(archive: zipfile.ZipFile, size: int) -> list[zipfile.ZipInfo]:
    """What an archive of so many bytes holds, nothing twice."""
    found = archive.infolist()
    name, count = (
        Counter(member.filename.removesuffix(".npy") for member in found).most_common(1)[0] if found else ("", 0)
    )
    if count > 1:
        raise ValueError(f"it holds '{name}' {count} times")
    if sum(member.compress_size for member in found) > size:
        raise ValueError("the archive is damaged: its members share bytes")
    return found


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype]:
    name = member.filename
    if member.file_size > min(limits.MEMBER_BYTES, limits.INFLATION * member.compress_size + _HEADER):
        raise ValueError(f"its member '{name}' would unpack to {limits.in_words(member.file_size)}")
    if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
        raise ValueError(f"the archive is damaged: '{name}' has two lengths")
    if member.flag_bits & 1:
        raise ValueError(f"its member '{name}' is encrypted")
    try:
        with archive.open(member) as file:
            return header(file, member.file_size)
    except ValueError as error:
        raise ValueError(f"{error} (member '{name}')") from None

"""What headers of `.npy` and `.npz` files say is compared with what the files hold, before numpy makes room for it."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from onnxq.errors import BadData, first_line
from onnxq.files import limits, room

#: Headers of numpy are short; its own limit is this.
_HEADER = 10_000
_READ = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the array in `file`, which is `size` bytes long.

    Raises:
        ValueError: it is no array of plain numbers or text, or not as long as its header says.
    """
    try:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = _READ[version](file, max_header_size=_HEADER)
    except Exception as error:  # of the tokenizer, the parser, the making of a type …
        raise ValueError(f"its header is damaged ({type(error).__name__})") from None
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, not numbers")
    if dtype.kind not in "biufcSUV" or dtype.names is not None:
        raise ValueError(f"it holds values of type {dtype}, not numbers")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in shape):
        raise ValueError(f"its shape is {shape}")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes != size - file.tell():
        raise ValueError(f"its header declares {nbytes} bytes of numbers, the file holds {size - file.tell()}")
    if not is_possible(shape):
        raise ValueError(f"its shape is {shape}")
    return shape, dtype


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
            found = {member.filename.removesuffix(".npy"): _member(archive, member) for member in archive.infolist()}
    except (BadData, ValueError):
        raise
    except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
        raise ValueError(f"the archive is damaged: {first_line(error)}") from None
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in found.values()) > room.memory():
        raise ValueError("its arrays do not fit into this machine's memory")
    return found


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype]:
    name = member.filename
    if member.file_size > min(limits.MEMBER_BYTES, limits.INFLATION * member.compress_size + _HEADER):
        raise ValueError(f"its member '{name}' would unpack to {limits.in_words(member.file_size)}")
    if member.flag_bits & 1:
        raise ValueError(f"its member '{name}' is encrypted")
    try:
        with archive.open(member) as file:
            return header(file, member.file_size)
    except ValueError as error:
        raise ValueError(f"{error} (member '{name}')") from None

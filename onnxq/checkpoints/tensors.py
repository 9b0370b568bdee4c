"""Tensors of a checkpoint on disk, by name: safetensors, or npz of numpy.

The header of a safetensors file is read here: it is 8 bytes of length and a piece of JSON, numpy maps the rest into
memory, bfloat16 included, and one dependency less is one less to keep up with.

Source: the format's specification in the README of huggingface/safetensors.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.boundary import typed
from onnxq.checkpoints.own_file import TYPES
from onnxq.errors import BadData, BadModel, first_line
from onnxq.files import array_limits, limits, schemas
from onnxq.runtime.own_files.other_kinds import is_pickled, what_around

#: A header longer than this is no header: the format's own limit.
LARGEST_HEADER = 100_000_000
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
#: Those that numpy does not have.
FOREIGN = {word: dtype for word, dtype in _DTYPES.items() if dtype.kind == "V"}
#: Kinds of tensors that numpy has no letter for: of a type that it does not have, and weights in codes.
UNKNOWN, CODES = "?", "q"


class Outline(NamedTuple):
    """What is known of a tensor before it is read.

    Attributes:
        kind: numpy's letter for its type (`dtype.kind`), `UNKNOWN` or `CODES`.
    """

    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def bits_of(dtype: np.dtype) -> np.dtype:
    """The unsigned integers that are as long."""
    return np.dtype(f"u{dtype.itemsize}")


@typed
def open_checkpoint(path: str | Path) -> Mapping[str, NDArray]:
    """The tensors of a `.safetensors` or `.npz` file, each read when it is asked for.

    Raises:
        BadData: no such file, neither of the two, or damaged.
    """
    path = Path(path)
    limits.require_file(path, BadData)
    refuse_pickles(path)
    return Npz(path) if zipfile.is_zipfile(path) else Safetensors(path)


def refuse_pickles(path: Path) -> None:
    """
    Raises:
        BadData: the file at `path` is one of torch, whose pickle would run code.
    """
    try:
        is_of_torch = is_pickled(path)
    except OSError as error:
        raise BadData(f"'{path}' cannot be read: {error.strerror}") from None
    if is_of_torch:
        raise BadData(
            f"'{path}' is a checkpoint of torch, a pickle that may run code as it is read: make a .safetensors of it "
            f"where you trust it: w = torch.load('{path.name}', weights_only=True), w = w['model'] or the like where "
            "the weights are in there beside others, and safetensors.torch.save_file({name: x.contiguous().clone() for "
            f"name, x in w.items()}}, '{path.stem}.safetensors')"
        )


def _require_name(path: Path, name: str) -> None:
    if fault := limits.fault_of_name(name):
        raise BadData(f"'{path}': {fault}")


def safetensors_type(dtype: np.dtype) -> str:
    """What the format calls a type of numpy.

    Raises:
        BadModel: it has no such type.
    """
    for word, known in _DTYPES.items():
        if known == dtype:
            return word
    raise BadModel(f"safetensors has no type {dtype}")


class Npz(Mapping[str, NDArray]):
    """The arrays of an npz file, which is open only while one is read.

    Raises:
        BadData: the file is damaged; where only an array is, when that is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._headers = array_limits.headers(path)
        except (OSError, ValueError) as error:
            raise BadData(f"'{path}' cannot be read as npz: {first_line(error)}") from None
        for name in self._headers:
            _require_name(path, name)
        self._types = self._said() if self._headers.pop(TYPES, None) else {}

    def _said(self) -> dict[str, np.dtype]:
        """Types that numpy does not have, by array."""
        with self._opened() as file:
            text = file[TYPES].tobytes()
        try:
            said = schemas.checked(limits.parse_json(text.decode()), dict[str, str])
            return {name: FOREIGN[word] for name, word in said.items()}
        except (ValueError, TypeError, KeyError):
            raise BadData(f"'{self._path}' is damaged: '{TYPES}' names no types of arrays") from None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with np.load(self._path, allow_pickle=False) as file:
                yield file
        except BadData:
            raise
        except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
            raise BadData(f"'{self._path}' cannot be read as npz: {first_line(error)}") from None

    def __getitem__(self, name: str) -> NDArray:
        if name not in self._headers:
            raise KeyError(name)
        with self._opened() as file:
            array: NDArray = file[name]
        dtype = self._types.get(name)
        if dtype is None:
            return array
        if array.dtype != bits_of(dtype):
            raise BadData(f"'{self._path}' is damaged: '{name}' is of type {array.dtype}, not of the bits of {dtype}")
        return array.view(dtype)

    def outline(self, name: str) -> Outline:
        """What the header of an array says."""
        shape, dtype = self._headers[name]
        return Outline(shape, self._types.get(name, dtype).kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)


@dataclass(frozen=True)
class Unreadable:
    """A tensor of a type that numpy does not have, which nothing may need."""

    name: str
    shape: tuple[int, ...]
    word: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """
        Raises:
            BadModel: always.
        """
        raise BadModel(self.told)

    def __len__(self) -> int:
        """
        Raises:
            BadModel: always.
        """
        raise BadModel(self.told)

    def __getattr__(self, attribute: str) -> Any:
        """Of all else that arrays have.

        Raises:
            BadModel: for each of it.
        """
        if attribute.startswith("__"):  # what Python asks of any object
            raise AttributeError(attribute)
        raise BadModel(self.told)

    @property
    def told(self) -> str:
        return f"tensor '{self.name}' is of type {self.word}, which numpy does not have"


def readable(found: Any) -> Any:
    """What a checkpoint has, if it is no `Unreadable`.

    Raises:
        BadModel: it is.
    """
    if isinstance(found, Unreadable):
        raise BadModel(found.told)
    return found


class Safetensors(Mapping[str, NDArray]):
    """The tensors of a safetensors file, mapped into memory once for all of them, and read-only.

    Raises:
        BadData: the file is damaged, or of another kind; where only a tensor is of a type that numpy does not have,
            when that is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        size = path.stat().st_size
        with limits.open_file(path, BadData) as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, LARGEST_HEADER):
                why = what_around(path) or "is neither a safetensors nor an npz file, or is cut short"
                raise BadData(f"'{path}' {why}")
            try:
                header = limits.parse_json(file.read(length).decode("utf-8"), strict=True)
                tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
                said = header.get("__metadata__")
                #: Texts by key. MLX writes null where there are none.
                self.metadata = schemas.checked({} if said is None else said, dict[str, str])
                entries = schemas.checked(tensors, dict[str, schemas.SafetensorsEntry])
                self._entries = {name: self._entry(name, entry, size - 8 - length) for name, entry in entries.items()}
            except (ValueError, AttributeError):
                raise BadData(f"'{path}' is not a safetensors file: its header does not describe tensors") from None
            self._data = np.memmap(file, np.uint8, "r").view(np.ndarray)[8 + length :]
        both = array_limits.overlapping((*e.data_offsets, name) for name, e in entries.items())
        if both is not None:
            raise BadData(f"'{path}' is damaged: tensors '{both[0]}' and '{both[1]}' share bytes")

    def _entry(
        self, name: str, entry: schemas.SafetensorsEntry, room: int
    ) -> tuple[np.dtype | str, tuple[int, ...], int]:
        """(type, shape, where it begins); the word of a type that numpy does not have."""
        dtype, shape = _DTYPES.get(entry.dtype), tuple(entry.shape)
        begin, end = entry.data_offsets
        _require_name(self._path, name)
        if (
            not begin <= end <= room
            or (dtype is not None and end - begin != math.prod(shape) * dtype.itemsize)
            or not array_limits.is_possible(shape)
        ):
            raise BadData(f"'{self._path}' is damaged: the bytes of tensor '{name}' are not those of its shape")
        return dtype or entry.dtype, shape, begin

    def __getitem__(self, name: str) -> NDArray:
        dtype, shape, begin = self._entries[name]
        if isinstance(dtype, str):
            raise BadData(f"'{self._path}': {Unreadable(name, shape, dtype).told}")
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        return self._data[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def outline(self, name: str) -> Outline:
        """What the header says of a tensor."""
        dtype, shape, _ = self._entries[name]
        return Outline(shape, UNKNOWN if isinstance(dtype, str) else dtype.kind)

    def unreadable(self, name: str) -> Unreadable | None:
        """A tensor that cannot be read for its type."""
        dtype, shape, _ = self._entries[name]
        return Unreadable(name, shape, dtype) if isinstance(dtype, str) else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

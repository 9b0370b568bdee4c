"""GGUF files: named tensors in ggml's blocks, with metadata, written one tensor at a time and read where they lie.

    "GGUF", version 3, tensors, pairs; for each pair: key, type, value; for each tensor: name, axes, lengths (the last
    axis first), type, offset; zeros up to a multiple of the alignment; the tensors, each at such a multiple

Source: the GGUF specification in ggml's docs/gguf.md. All numbers are little-endian.
"""

from __future__ import annotations

import functools
import math
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.checkpoints import gguf_foreign as foreign
from onnxq.errors import BadData, BadModel
from onnxq.files import array_limits, limits, staging
from onnxq.formats import QuantizedTensor
from onnxq.formats.kinds import arguments

ALIGNMENT = 32
#: ggml's numbers of the formats that are also ours, by GGUF's names, and of plain arrays.
NUMBERS = {
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "BF16": 30,
    "MXFP4": 39,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "TQ1_0": 34,
    "TQ2_0": 35,
}
ARRAYS = {
    np.dtype(t): n
    for t, n in (
        (np.float32, 0),
        (np.float16, 1),
        (ml_dtypes.bfloat16, 30),
        (np.int8, 24),
        (np.int16, 25),
        (np.int32, 26),
        (np.int64, 27),
        (np.float64, 28),
    )
}
#: How numbers and texts of metadata are told apart: type, and format of `struct`.
_KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
MOST_AXES = 4
#: Bytes of metadata and names; those of a vocabulary of a quarter of a million tokens are a tenth of that.
LARGEST_HEADER = 1 << 27
_TOO_LONG = "is longer than the file, or than a header is"

#: Of metadata: texts, truth values, numbers, and lists of texts or numbers. Numbers of numpy keep their type.
Value = str | bool | int | float | np.generic | NDArray | list[str]


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies in a file: its type by ggml's number, its shape (first axis first), its first byte."""

    number: int
    shape: tuple[int, ...]
    start: int


def write_gguf(
    path: str | Path,
    tensors: Iterable[tuple[str, Callable[[], QuantizedTensor | NDArray]]],
    metadata: Mapping[str, Value] | None = None,
    *,
    alignment: int = ALIGNMENT,
    replace: bool = False,
) -> int:
    """Write a GGUF file; the bytes it has.

    Args:
        path: of the file to write.
        tensors: names and what makes them: weights in a format of `layouts.gguf`, rows of whole blocks, or arrays
            of float32, float16, bfloat16, float64 or signed integers. One at a time is in memory.
        metadata: texts, truth values, integers of 64 bits and floats (stored with 64 bits), numbers and vectors of
            numpy (stored as what they are), and lists of texts, by key.
        alignment: of each tensor, a multiple of 8.
        replace: whether a file that is there is replaced.

    Raises:
        BadModel: a tensor that GGUF cannot hold, or two of one name.
        BadOutput: it cannot be written.
        ValueError: another alignment, or metadata of another type.
    """
    alignment = arguments.whole(alignment, "alignment")
    if alignment < 8 or alignment % 8:
        raise ValueError(f"an alignment of {alignment} bytes is no multiple of 8")
    pairs = {"general.quantization_version": struct.pack("<II", 4, 2)}
    if alignment != ALIGNMENT:
        pairs["general.alignment"] = struct.pack("<II", 4, alignment)
    pairs |= {key: _value(key, value) for key, value in (metadata or {}).items()}
    path = Path(path)
    with staging.whole(path, replace=replace) as staged:
        parts = staged.with_name(f"{staged.name}.part")
        infos: dict[str, bytes] = {}
        with parts.open("xb") as data:
            for name, make in tensors:
                if name in infos:
                    raise BadModel(f"there are two tensors '{name}'")
                number, shape, raw = _bytes(name, make())
                _pad(data, alignment)
                lengths = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
                infos[name] = _text(name) + lengths + struct.pack("<IQ", number, data.tell())
                data.write(raw.view(np.uint8).data)
            _pad(data, alignment)
        with staged.open("xb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)))
            file.writelines(_text(key) + value for key, value in pairs.items())
            file.writelines(infos.values())
            _pad(file, alignment)
            with parts.open("rb") as data:
                shutil.copyfileobj(data, file, 1 << 24)
            nbytes = file.tell()
    return nbytes


class Gguf(Mapping[str, "QuantizedTensor | NDArray"]):
    """The tensors of a GGUF file by name, each read from the disk when it is asked for, and `metadata` by key.

    Raises:
        BadData: no such file, not GGUF, damaged, or a tensor in a format that onnxq does not have.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not limits.require_file(path, BadData):
            raise BadData(f"'{path}' is not a GGUF file")
        self._data = np.memmap(path, np.uint8, "r").view(np.ndarray)
        try:
            self.metadata, self._entries, head = _header(self._data.data)
        except (struct.error, IndexError):
            raise BadData(f"'{path}' is a GGUF file that is cut short") from None
        except UnicodeDecodeError:
            raise BadData(f"'{path}' is not a GGUF file, or damaged: a name or a text is not in UTF-8") from None
        except RecursionError:
            raise BadData(f"'{path}' is not a GGUF file, or damaged: lists in it are nested too deeply") from None
        except (ValueError, OverflowError) as error:
            raise BadData(f"'{path}' is not a GGUF file, or damaged: {error}") from None
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment % 8:
            raise BadData(f"'{path}' is damaged: its alignment is no number of bytes that makes sense")
        for name, entry in self._entries.items():
            if entry.start % alignment:
                raise BadData(f"'{path}' is damaged: tensor '{name}' begins at no multiple of {alignment} bytes")
        self._start = -(-head // alignment) * alignment
        spans = [(e.start, e.start + _nbytes(path, name, e), name) for name, e in self._entries.items()]
        for _, end, name in spans:
            end += self._start
            if end > self._data.size:
                raise BadData(f"'{path}' is cut short: tensor '{name}' ends at byte {end} of {self._data.size}")
        both = array_limits.overlapping(spans)
        if both is not None:
            raise BadData(f"'{path}' is damaged: tensors '{both[0]}' and '{both[1]}' share bytes")

    def outline(self, name: str) -> tuple[tuple[int, ...], formats.Format | None]:
        """Shape and format of a tensor that is not read yet; plain arrays, and those decoded by others, have none.

        Args:
            name: of the tensor.
        """
        entry = self._entries[name]
        if entry.number in foreign.BLOCKS:
            return entry.shape, foreign.format_of(entry.number)
        kind = _kind(entry.number)
        return entry.shape, kind if isinstance(kind, formats.Format) else None

    def is_foreign(self, name: str) -> bool:
        """Whether a tensor is of a type that is no format of onnxq.

        Args:
            name: of the tensor.
        """
        return self._entries[name].number in foreign.BLOCKS

    def __getitem__(self, name: str) -> QuantizedTensor | NDArray:
        entry = self._entries[name]
        begin = self._start + entry.start
        kind = _kind(entry.number)
        if entry.number in foreign.BLOCKS:
            raw = self._data[begin : begin + foreign.nbytes(entry.number, math.prod(entry.shape))]
            return foreign.decoded(name, entry.number, raw, entry.shape)
        if isinstance(kind, np.dtype):
            raw = self._data[begin : begin + math.prod(entry.shape) * kind.itemsize]
            return raw.view(kind).reshape(entry.shape)
        assert kind is not None  # as `__init__` has made sure
        raw = self._data[begin : begin + layouts.gguf_nbytes(kind, math.prod(entry.shape))]
        return layouts.from_gguf(kind, raw, entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@functools.cache
def _kind(number: int) -> np.dtype | formats.Format | None:
    """The type of plain arrays, or the format of weights, that ggml numbers so."""
    found = next((dtype for dtype, each in ARRAYS.items() if each == number), None)
    word = next((word for word in formats.names() if NUMBERS.get(formats.get(word).gguf or "") == number), None)
    return found if found is not None or word is None else formats.get(word)


def _nbytes(path: Path, name: str, entry: Stored) -> int:
    kind, size = _kind(entry.number), math.prod(entry.shape)
    if not array_limits.is_possible(entry.shape):
        raise BadData(f"'{path}' is damaged: tensor '{name}' is of shape {list(entry.shape)}")
    if entry.number in foreign.BLOCKS:
        if not entry.shape or entry.shape[-1] % foreign.BLOCKS[entry.number][1]:
            raise BadData(f"'{path}' is damaged: tensor '{name}' of shape {list(entry.shape)} has no whole blocks")
        return foreign.nbytes(entry.number, size)
    if kind is None:
        raise BadData(f"'{path}': tensor '{name}' is of ggml's type {entry.number}, which onnxq does not have")
    if isinstance(kind, np.dtype):
        return size * kind.itemsize
    if not entry.shape or entry.shape[-1] % layouts.gguf_block(kind):
        raise BadData(f"'{path}' is damaged: tensor '{name}' of shape {list(entry.shape)} has no whole blocks")
    return layouts.gguf_nbytes(kind, size)


def _header(data: memoryview) -> tuple[dict[str, Any], dict[str, Stored], int]:
    """(metadata, tensors by name, bytes of the header)."""
    if bytes(data[:4]) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    at, data = 4, data[:LARGEST_HEADER]  # a sparse file may say that a text or a list is as long as the disk is not

    def take(form: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return found

    def text() -> str:
        nonlocal at
        length = take("Q")
        if length > len(data) - at:
            raise ValueError(f"a text {_TOO_LONG}")
        at += length
        return bytes(data[at - length : at]).decode("utf-8")

    def value(kind: int) -> Any:
        if kind == _TEXT:
            return text()
        if kind == _LIST:
            each, count = take("I"), take("Q")
            if count > len(data) - at:
                raise ValueError(f"a list {_TOO_LONG}")
            return numbers(each, count) if each in _KINDS else [value(each) for _ in range(count)]
        if kind not in _KINDS:
            raise ValueError(f"there is no type {kind} of metadata")
        return take(_KINDS[kind])

    def numbers(kind: int, count: int) -> list[Any]:
        nonlocal at
        found = np.frombuffer(data, np.dtype(_KINDS[kind]).newbyteorder("<"), count, at)
        at += found.nbytes
        return found.tolist()

    version, tensors, pairs = take("I"), take("Q"), take("Q")
    if version not in (2, 3):
        raise ValueError(f"it is of version {version}, not 2 or 3")
    if tensors + pairs > len(data):
        raise ValueError("it tells of more than it can hold")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        if (key := text()) in metadata:
            raise ValueError(f"it says twice what '{key}' is")
        metadata[key] = value(take("I"))
    entries: dict[str, Stored] = {}
    for _ in range(tensors):
        name, axes = text(), take("I")
        if fault := limits.fault_of_name(name):
            raise ValueError(fault)
        if axes > MOST_AXES or name in entries:
            raise ValueError(f"tensor '{name}' is there twice, or has {axes} axes")
        lengths = [take("Q") for _ in range(axes)]
        entries[name] = Stored(take("I"), tuple(lengths[::-1]), take("Q"))
    return metadata, entries, at


def _bytes(name: str, tensor: QuantizedTensor | NDArray) -> tuple[int, tuple[int, ...], NDArray]:
    """(ggml's type, shape, what goes to the file)."""
    if len(tensor.shape) > MOST_AXES:
        raise BadModel(f"tensor '{name}' has {len(tensor.shape)} axes; GGUF has at most {MOST_AXES}")
    if isinstance(tensor, QuantizedTensor):
        try:
            raw = layouts.gguf(tensor)
        except BadModel as error:
            raise formats.in_weight(error, name) from None
        except ValueError as error:
            raise BadModel(f"weight '{name}' of shape {list(tensor.shape)} is none for GGUF: {error}") from None
        if tensor.granularity.axis not in (None, len(tensor.shape) - 1):
            raise BadModel(f"weight '{name}': GGUF's blocks lie along the last axis, not {tensor.granularity.axis}")
        return NUMBERS[str(tensor.format.gguf)], tensor.shape, raw.reshape(-1)
    if tensor.dtype not in ARRAYS:
        raise BadModel(f"tensor '{name}' is of type {tensor.dtype}, which GGUF does not hold")
    return ARRAYS[tensor.dtype], tensor.shape, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


def _value(key: str, value: object) -> bytes:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return struct.pack("<IIQ", _LIST, _TEXT, len(value)) + b"".join(map(_text, value))
    if isinstance(value, np.generic | np.ndarray):
        kind = next((number for number, form in _KINDS.items() if np.dtype(form) == value.dtype), None)
        if kind is None or value.ndim > 1:
            raise ValueError(f"the metadata '{key}' is of type {value.dtype} and {value.ndim} axes, which GGUF has not")
        head = struct.pack("<I", kind) if not value.ndim else struct.pack("<IIQ", _LIST, kind, value.size)
        return head + value.astype(value.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, str):
        return struct.pack("<I", _TEXT) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return struct.pack("<Iq", 11, value)
    raise ValueError(f"the metadata '{key}' is {value!r}: no text, truth value, number, or list of one of them")


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))

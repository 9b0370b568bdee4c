"""Tables as samples, a row each: CSV, Parquet, Arrow and Feather files, and what the `datasets` library saves.

They are read in batches; a row becomes arrays, an image or a sound only when its sample is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData, MissingRuntime, first_line
from onnxq.files import limits, room
from onnxq.runtime.session import Feed, Input
from onnxq.samples.fit import Label
from onnxq.samples.texts.text import role_of

TABLE_SUFFIXES = {".csv", ".tsv", ".parquet", ".arrow", ".feather"}
#: Rows that are in memory at a time.
BATCH = 64
_SOUND = re.compile("audio|wav|speech|sound")
_TEXT = ("text", "sentence", "content", "question", "document")
_LABEL = re.compile("label|target|class|^y$", re.IGNORECASE)
#: Marks between cells, of files that are text.
_MARKS = {".csv": ("a comma", ","), ".tsv": ("a tab", "\t")}
#: Integers that arrays hold.
_INTEGERS = range(-(1 << 63), 1 << 64)
_YES_OR_NO = {"true": 1, "True": 1, "TRUE": 1, "false": 0, "False": 0, "FALSE": 0}


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise MissingRuntime("reading tables needs pyarrow: pip install 'onnxq[tables]'") from None
    return pyarrow


def _is_text(file: Path) -> bool:
    """Whether its cells are texts, of which those that look like numbers may be some."""
    return file.suffix.lower() in _MARKS


def batches(file: Path, types: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Record batches of a file, one after the other.

    Args:
        types: of the columns of a file that is text; without, they are what the first cells look like.

    Raises:
        MissingRuntime, BadData: pyarrow is missing, or the file is none of its kind, or damaged.
    """
    arrow = _arrow()
    try:
        with contextlib.ExitStack() as opened:
            if _is_text(file):
                cut = arrow.csv.ParseOptions(delimiter=_MARKS[file.suffix.lower()][1])
                how = arrow.csv.ConvertOptions(column_types=types)
                found = opened.enter_context(arrow.csv.open_csv(file, parse_options=cut, convert_options=how))
            elif file.suffix.lower() == ".parquet":
                found = opened.enter_context(arrow.parquet.ParquetFile(file)).iter_batches(BATCH)
            else:
                mapped = opened.enter_context(arrow.memory_map(str(file)))
                found = _messages(arrow, mapped)
            found = iter(found)
            while (batch := _next(found)) is not None:
                yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))
    except (arrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise BadData(f"'{file}' is not a readable table: {first_line(error)}") from None


def _next(found: Iterator[Any]) -> Any:
    """The next batch, if there is one, and it is sound."""
    with room.limited():
        batch = next(found, None)
        if batch is not None:
            batch.validate(full=True)  # offsets that lead outside would end the process
            _ = batch.schema.names, str(batch.schema)  # raises where names are not UTF-8
        return batch


def _messages(arrow: Any, mapped: Any) -> Iterator[Any]:
    """The batches of an Arrow file, or of a stream, which is what `datasets` writes."""
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    if not is_file:
        yield from arrow.ipc.open_stream(mapped)
        return
    reader = arrow.ipc.open_file(mapped)
    yield from (reader.get_batch(i) for i in range(reader.num_record_batches))


def schema_of(file: Path) -> Any:
    """What columns a table has, and of what types; None: it has no rows.

    Of a file that is text, columns are what their first cells look like, wherever they are.

    Raises:
        MissingRuntime, BadData: see `batches`.
    """
    first = next(batches(file), None)
    if first is None or not _is_text(file):
        return None if first is None else first.schema
    arrow, schema = _arrow(), first.schema
    empty = {i for i, field in enumerate(schema) if arrow.types.is_null(field.type)}
    for i, field in enumerate(schema):
        if arrow.types.is_binary(field.type):  # text that is not UTF-8, as is said where it is read
            schema = schema.set(i, field.with_type(arrow.string()))
    names = [field.name for field in schema]
    rest = batches(file, dict.fromkeys(names, "binary") | {names[i]: "string" for i in empty})
    while empty and (batch := next(rest, None)) is not None:
        for i in sorted(empty):
            word = next((x for x in batch.column(i).unique().to_pylist() if not _is_empty(x)), None)
            if word is not None:
                kind = arrow.string() if _number(word) is None else arrow.float64()
                schema = schema.set(i, schema.field(i).with_type(kind))
                empty.discard(i)
    return schema


@functools.cache
def _empty() -> frozenset[str]:
    return frozenset(_arrow().csv.ConvertOptions().null_values)


def _is_empty(word: str) -> bool:
    """Whether a cell of a text that should be a number holds none."""
    return word.strip() in _empty()


def _number(word: str) -> int | float | None:
    """What a cell of a text says; None: no number."""
    word = word.strip()
    if word in _YES_OR_NO:
        return _YES_OR_NO[word]
    if "_" in word:  # which Python allows between digits
        return None
    with contextlib.suppress(ValueError):
        if (found := int(word)) in _INTEGERS:
            return found
    with contextlib.suppress(ValueError):
        return float(word)
    return None


@dataclass(frozen=True)
class Columns:
    """Which columns of a table make what.

    Attributes:
        given: named like inputs.
        row: numbers that are one input together, in their order.
        picture, sound, text: the column for the inputs that are left.
        types: as which columns of a file that is text are read: those that make something as text, the others as
            bytes.
    """

    given: tuple[str, ...] = ()
    row: tuple[str, ...] = ()
    picture: str | None = None
    sound: str | None = None
    text: str | None = None
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        return {kind for kind in ("picture", "sound", "text") if getattr(self, kind) is not None}

    def typed(self, schema: Any) -> Columns:
        """With the types of all columns."""
        used = {*self.given, *self.row, self.picture, self.sound, self.text}
        return dataclasses.replace(self, types={n: "string" if n in used else "binary" for n in schema.names})


def columns_of(schema: Any, inputs: Sequence[Input], file: Path) -> Columns:
    """What a table with this schema has for a model with these inputs.

    Raises:
        BadData: numbers that are as many as no input takes.
    """
    given = tuple(i.name for i in inputs if i.name in schema.names)
    rest = [i for i in inputs if i.name not in given]
    types = {field.name: field.type for field in schema if field.name not in given}
    features = _features(schema)
    pictures = [n for n, type in types.items() if _holds(type) and not _is_sound(n, features)]
    sounds = [n for n, type in types.items() if _holds(type) and _is_sound(n, features)]
    strings = [name for name, type in types.items() if str(type) in ("string", "large_string")]
    named = types if _is_text(file) else strings  # where numbers are texts too
    texts = [name for name in _TEXT if name in named] or strings
    numbers = [n for n, type in types.items() if re.match(r"u?int\d|float|double|halffloat|bool|decimal", str(type))]
    (most, times), *_ = Counter(schema.names).most_common(1) or [("", 0)]
    if times > 1:
        raise BadData(f"'{file}' has {times} columns '{most}': names must not come twice")
    if _is_text(file) and len(schema.names) == 1 and re.search("[;\t]", schema.names[0]):
        mark = _MARKS[file.suffix.lower()][0]
        raise BadData(f"'{file}' has one column, {schema.names[0]!r}: the delimiter of {file.suffix} must be {mark}")
    made = Columns(
        given,
        (),
        pictures[0] if pictures and any(i.shape and len(i.shape) == 4 for i in rest) else None,
        sounds[0] if sounds and any(i.dtype.kind == "f" for i in rest) else None,
        texts[0] if texts and any(role_of(i) for i in rest) else None,
    )
    if given or made.kinds or len(rest) != 1 or not numbers:
        return made.typed(schema)
    width = rest[0].shape[-1] if rest[0].shape else None
    numbers = _without_answer(numbers, width if isinstance(width, int) else None)
    if isinstance(width, int) and len(numbers) != width:
        raise BadData(
            f"'{file}' has {len(numbers)} columns of numbers ({_few(numbers)}), '{rest[0].name}' takes {width}: leave "
            "out the others, or name columns like the model's inputs"
        )
    return Columns(row=tuple(numbers)).typed(schema)


def _without_answer(numbers: list[str], width: int | None) -> list[str]:
    """The columns of a row without the one that says the right answer: where there is one too many, or, of a model
    that takes any number, one that is called so."""
    called = [name for name in numbers if _LABEL.fullmatch(name)]
    if width is None:
        return [name for name in numbers if name not in called] or numbers
    if len(numbers) != width + 1:
        return numbers
    called = called or [name for name in numbers if _LABEL.search(name)]
    return [name for name in numbers if name not in called]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def _features(schema: Any) -> dict[str, Any]:
    """What the `datasets` library notes of its columns."""
    try:
        found = limits.parse_json((schema.metadata or {})[b"huggingface"].decode())["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_sound(name: str, features: dict[str, Any]) -> bool:
    kind = features.get(name)
    if isinstance(kind, dict) and kind.get("_type") in ("Audio", "Image"):
        return kind["_type"] == "Audio"
    return _SOUND.search(name.lower()) is not None


def _holds(type: Any) -> bool:
    """Whether a column holds files: bytes, or `datasets`' pairs of bytes and path."""
    text = str(type)
    return text in ("binary", "large_binary") or (text.startswith("struct<") and "bytes: " in text and "path: " in text)


def file_in(batch: Any, row: int, column: str, folder: Path, where: str) -> bytes | Path:
    """The picture or sound of a row: what is in the table, or a file beside it.

    Raises:
        BadData: there is neither.
    """
    value = batch.column(column)[row].as_py()
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        value = _beside(folder, value, f"{where}: column '{column}' names the file '{value}'")
    if not value:
        raise BadData(f"{where}: column '{column}' is empty")
    return value


def _beside(folder: Path, name: str, what: str) -> Path:
    """A file that a table names, which lies in the table's folder: tables of strangers name any."""
    found = os.path.realpath(folder / name) if "\0" not in name else ""
    if not os.path.isfile(found):
        raise BadData(f"{what}, which is not there")
    if not Path(found).is_relative_to(os.path.realpath(folder)):
        raise BadData(f"{what}, outside of the table's folder: put it there, or its bytes into the table")
    return Path(found)


def arrays_in(batch: Any, row: int, columns: Columns, inputs: dict[str, Input], file: Path, where: str) -> Feed:
    """The inputs that columns hold."""
    array = _of_text if _is_text(file) else _array
    found = {n: shaped(array(batch.column(n)[row], f"{where}: '{n}'", inputs[n]), inputs[n]) for n in columns.given}
    if columns.row:
        (rest,) = (i for name, i in inputs.items() if name not in columns.given)
        numbers = [float(array(batch.column(name)[row], f"{where}: '{name}'", rest)) for name in columns.row]
        found[rest.name] = shaped(np.array(numbers), rest)
    return found


def _of_text(value: Any, what: str, i: Input) -> NDArray:
    """Of a cell that is a text: itself, or the number that it says, whichever the input takes."""
    word = value.as_py()
    if i.dtype.kind == "O" and not isinstance(i, Label):
        return np.array(word, object)
    if _is_empty(word):
        _require_missing(what, i)
        return np.array(float("nan"))
    found = _number(word)
    if found is None and not isinstance(i, Label):
        raise BadData(f"{what} is {word!r:.60}, and '{i.name}' takes numbers")
    return np.array(word, object) if found is None else np.array(found)


def _require_missing(what: str, i: Input) -> None:
    """
    Raises:
        BadData: an input takes nothing that may be missing, as trees take it of floats.
    """
    if i.dtype.kind in "iub":
        raise BadData(f"{what} is empty, and '{i.name}' takes no such number")


def _array(value: Any, what: str, i: Input) -> NDArray:
    """Of a cell: a number, a text, or lists in lists, which must all be as long as the first."""
    shape: list[int] = []
    is_list = "list" in str(value.type).partition("<")[0]
    if not value.is_valid and (is_list or (i.dtype.kind == "O" and not isinstance(i, Label))):
        raise BadData(f"{what} is empty")
    if not is_list:
        if not value.is_valid:
            _require_missing(what, i)
        return _cell(value, what)
    values = value.values
    shape.append(len(values))
    while "list" in str(values.type).partition("<")[0]:
        lengths = {len(item.values or ()) if item.is_valid else 0 for item in values}
        if len(lengths) != 1:
            raise BadData(f"{what} holds lists of different lengths")
        shape.append(lengths.pop())
        values = values.flatten()
    found = values.to_numpy(zero_copy_only=False)
    if len(found) != np.prod(shape):
        raise BadData(f"{what} holds lists of different lengths")
    return found.reshape(shape)


def _cell(value: Any, what: str) -> NDArray:
    """Of a cell that is no list in Arrow's eyes."""
    try:
        found = value.as_py()
    except ValueError:  # a time that Python's calendar has not
        found = ()
    if found is None:
        return np.array(float("nan"))
    if isinstance(found, (bool, int, float, Decimal, str, list)):
        with contextlib.suppress(ValueError):  # of lists of different lengths
            return np.array(found, object if isinstance(found, str) else None)
    raise BadData(f"{what} is of type {value.type}, not a number, a text or a list of them")


def shaped(x: NDArray, i: Input) -> NDArray:
    """A row's array with the axes of its input: the batch in front, and what a flat list left out."""
    shape = i.shape
    if shape is None or x.ndim > len(shape):
        return x
    missing = len(shape) - x.ndim
    fixed = [dim if isinstance(dim, int) and dim > 0 else 1 for dim in shape]
    if missing > 0 and x.size == np.prod(fixed):
        return x.reshape(fixed)
    x = x.reshape((1,) * missing + x.shape)
    return np.repeat(x, fixed[0], axis=0) if missing and fixed and x.shape[0] == 1 else x

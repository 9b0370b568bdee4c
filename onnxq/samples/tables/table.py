"""Tables as files: their columns, and batches of their rows; a row becomes arrays only when its sample is read."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxq.errors import BadData, MissingRuntime, first_line
from onnxq.files import room

TABLE_SUFFIXES = {".csv", ".tsv", ".parquet", ".arrow", ".feather"}
#: Rows that are in memory at a time.
BATCH = 64
#: Numbers that are read at a time.
_NUMBERS = 1 << 19
_LEAST_BLOCK, _MOST_BLOCK = 1 << 20, 1 << 26
#: Of a table: Arrow takes longer for each column than for a row of numbers, and messages name them.
_MOST_COLUMNS = 1 << 17
#: Marks between cells, of files that are text.
MARKS = {".csv": ("a comma", ","), ".tsv": ("a tab", "\t")}
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


def is_text(file: Path) -> bool:
    """Whether its cells are texts, of which those that look like numbers may be some."""
    return file.suffix.lower() in MARKS


def batches(
    file: Path, types: Mapping[str, str] | None = None, only: Sequence[str] | None = None, group: int | None = None
) -> Iterator[Any]:
    """Record batches of a file, one after the other.

    Args:
        types: of the columns of a file that is text; without, they are what the first cells look like.
        only: the columns of a file that is text which are made; None: all are.
        group: of the rows of a Parquet file (`groups_of`); None: all are read.

    Raises:
        MissingRuntime, BadData: pyarrow is missing, or the file is none of its kind, or damaged.
    """
    with _reading(file) as arrow, contextlib.ExitStack() as opened:
        if is_text(file):
            cut = arrow.csv.ParseOptions(delimiter=MARKS[file.suffix.lower()][1], newlines_in_values=True)
            how = arrow.csv.ConvertOptions(
                column_types=types, include_columns=only, include_missing_columns=only is not None
            )
            read = arrow.csv.ReadOptions(block_size=_block(file))
            found = opened.enter_context(arrow.csv.open_csv(file, read, cut, how))
        elif file.suffix.lower() == ".parquet":
            table = opened.enter_context(arrow.parquet.ParquetFile(file))
            found = table.iter_batches(_rows_at_once(table.schema_arrow), None if group is None else [group])
        else:
            mapped = opened.enter_context(arrow.memory_map(str(file)))
            found = _messages(arrow, mapped)
        found = iter(found)
        while (batch := _next(found)) is not None:
            _require_few(file, batch.num_columns)
            yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[Any]:
    """pyarrow; what it does not read is refused.

    Raises:
        MissingRuntime, BadData: it is missing, or the file is none of its kind, or damaged.
    """
    arrow = _arrow()
    try:
        yield arrow
    except (arrow.ArrowException, OSError, ValueError, MemoryError) as error:
        why = first_line(error)
        if why.startswith("straddling object"):
            why = "a row of it is longer than any should be: a quote in it may not be closed"
        raise BadData(f"'{file}' is not a readable table: {why}") from None


def _block(file: Path) -> int:
    """Bytes of a text that are read at a time: a few rows at least, which are about as long as the line of names.

    Raises:
        BadData: it is a line of more names than a table may have.
    """
    with file.open("rb") as opened:
        line = opened.readline(_MOST_BLOCK)
    _require_few(file, line.count(MARKS[file.suffix.lower()][1].encode()) + 1)
    return max(_LEAST_BLOCK, min(4 * len(line), _MOST_BLOCK))


def _require_few(file: Path, columns: int) -> None:
    """
    Raises:
        BadData: a table has too many columns.
    """
    if columns > _MOST_COLUMNS:
        raise BadData(f"'{file}' has {columns} columns, more than the {_MOST_COLUMNS} of a table: give arrays (.npz)")


def _rows_at_once(schema: Any) -> int:
    """Of numbers alone, whose size is known, rows are many: each read takes a while for each column."""
    is_number = _arrow().types.is_primitive
    return max(BATCH, _NUMBERS // max(1, len(schema))) if all(is_number(field.type) for field in schema) else BATCH


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


def count_of(file: Path, name: str, most: int) -> int:
    """How many rows a table with a column of this name has, as far as they are counted: to a little over `most`.

    Raises:
        MissingRuntime, BadData: see `batches`.
    """
    groups = groups_of(file)
    if groups is not None:
        return sum(groups)
    count = 0
    for batch in batches(file, {name: "binary"}, [name]):
        count += batch.num_rows
        if count > most:  # an Arrow file of a few bytes may say that one row is there 2^62 times
            break
    return count


def groups_of(file: Path) -> list[int] | None:
    """How many rows each group of a Parquet file has, which can be read alone; None: it is no such file.

    Raises:
        MissingRuntime, BadData: see `batches`.
    """
    if file.suffix.lower() != ".parquet":
        return None
    with _reading(file) as arrow, arrow.parquet.ParquetFile(file) as found:
        return [found.metadata.row_group(i).num_rows for i in range(found.metadata.num_row_groups)]


def alone(batch: Any, row: int) -> Any:
    """A batch of one row, which does not hold on to the others, if Arrow can copy what it is of."""
    try:
        with room.limited():
            return batch.take([row])
    except (NotImplementedError, _arrow().ArrowException):
        return batch.slice(row, 1)


def names_of(file: Path) -> list[str]:
    """What the columns of a table are called; nothing where it has no rows.

    Raises:
        MissingRuntime, BadData: see `batches`.
    """
    first = next(batches(file), None)
    return [] if first is None else list(first.schema.names)


def schema_of(file: Path) -> Any:
    """What columns a table has, and of what types; None: it has no rows.

    Of a file that is text, columns are what their first cells look like, wherever they are.

    Raises:
        MissingRuntime, BadData: see `batches`.
    """
    first = next(batches(file), None)
    if first is None or not is_text(file):
        return None if first is None else first.schema
    arrow, names, types = _arrow(), first.schema.names, first.schema.types
    empty = {i for i, type in enumerate(types) if arrow.types.is_null(type)}
    # A text that is not UTF-8 is one, as is said where it is read.
    types = [arrow.string() if arrow.types.is_binary(type) else type for type in types]
    rest = batches(file, dict.fromkeys(names, "binary") | {names[i]: "string" for i in empty})
    while empty and (batch := next(rest, None)) is not None:
        for i in sorted(empty):
            word = next((x for x in batch.column(i).unique().to_pylist() if not is_empty(x)), None)
            if word is not None:
                types[i] = arrow.string() if number_in(word) is None else arrow.float64()
                empty.discard(i)
    return arrow.schema(zip(names, types, strict=True), first.schema.metadata)


@functools.cache
def _empty() -> frozenset[str]:
    return frozenset(_arrow().csv.ConvertOptions().null_values)


def is_empty(word: str) -> bool:
    """Whether a cell of a text that should be a number holds none."""
    return word.strip() in _empty()


def number_in(word: str) -> int | float | None:
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


def plain(type: Any) -> Any:
    """The type of what cells hold, however often each is stored."""
    kinds = _arrow().types
    return type.value_type if kinds.is_dictionary(type) or kinds.is_run_end_encoded(type) else type

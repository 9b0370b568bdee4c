"""Files as people have them, as samples: which there are, what they hold, and how often."""

from __future__ import annotations

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from onnxq.errors import BadData, first_line
from onnxq.files import limits, room
from onnxq.runtime.session import Input
from onnxq.samples.fit import Read
from onnxq.samples.pictures.images import IMAGE_SUFFIXES
from onnxq.samples.reading import Reading
from onnxq.samples.records import Maker, Record
from onnxq.samples.sounds.sound import SOUND_SUFFIXES
from onnxq.samples.tables import cells, columns, spread, table
from onnxq.samples.texts.companions import Companions

TEXT_SUFFIXES = {".txt"}
LINES_SUFFIXES = {".jsonl", ".ndjson"}
#: What folders of each kind of file hold.
KINDS = {
    "images": IMAGE_SUFFIXES,
    "sounds": SOUND_SUFFIXES,
    "texts": TEXT_SUFFIXES,
    "lines of JSON": LINES_SUFFIXES,
    "tables": table.TABLE_SUFFIXES,
}
SUFFIXES = set().union(*KINDS.values())
#: Characters that certainly make a token, and of a line at most, if it has more.
_CHARACTERS, _LINE = 8, 1 << 11
_MOST_JSON = 1 << 26


def kind_of(file: Path) -> str | None:
    """A word of `KINDS`."""
    return next((kind for kind, suffixes in KINDS.items() if file.suffix.lower() in suffixes), None)


def files_in(folder: Path, suffixes: set[str]) -> list[Path]:
    """The files in `folder` and below, a file of each folder in turn, so that the first few are of every class."""
    found = sorted(
        path
        for path in _everything_in(folder)
        if path.suffix.lower() in suffixes
        and _is_regular(path)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    seen: Counter[Path] = Counter()
    places = {}
    for path in found:
        places[path] = (seen[path.parent], path)
        seen[path.parent] += 1
    if all(kind_of(path) in ("tables", "lines of JSON", "texts") for path in found):
        return found  # parts of one table are in order
    return sorted(found, key=places.__getitem__)


def _is_regular(path: Path) -> bool:
    """Whether it is a file.

    Raises:
        BadData: it is one that the kernel makes up: a folder of a stranger may hold a link to one, which may never end.
    """
    return path.is_file() and limits.require_file(path, BadData) >= 0


def _everything_in(folder: Path) -> Iterator[Path]:
    """Files and folders, also where links lead to, without what is below a hidden one.

    Raises:
        BadData: that is more than anybody's samples; or a folder cannot be read, whose samples would be missed.
    """
    count, most = 0, limits.FOLDER_ENTRIES
    for where, folders, names in limits.walk(folder, _refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *names):
            if (count := count + 1) > most:
                raise BadData(f"the folder '{folder}' holds more than {most:,} files: name the one with the samples")
            yield Path(where, name)


def _refuse(error: OSError) -> None:
    raise BadData(f"the folder '{error.filename}' cannot be read: {error.strerror}")


#: Opens samples anew.
Reads = Callable[[], Iterator[Read]]
#: Opens at most so many of them, evenly spread, and says over how many: "900", or "first 16,777,216".
Some = Callable[[int], tuple[Reads, str]]


@dataclass(frozen=True)
class Samples:
    """
    Attributes:
        all: of the files, in their order.
        some: some of them; None: the first will do.
    """

    all: Reads
    some: Some | None = None


def samples_of(
    files: Sequence[Path], source: str, inputs: tuple[Input, ...], reading: Reading, place: Companions
) -> Samples:
    """Samples from files of one kind; what is wrong with kind and inputs is said at once, with the files when read."""
    kind = kind_of(files[0])
    make = functools.partial(Maker, inputs, reading, place, source=source)
    if kind == "tables":
        return _tables(files, inputs, make)
    if kind == "lines of JSON":
        return _lines(files, inputs, make)
    maker = make({"images": ["picture"], "sounds": ["sound"], "texts": ["text"]}[kind or ""])
    records = {"images": _pictures, "sounds": _sounds, "texts": _pieces}[kind or ""]
    return Samples(lambda: (functools.partial(maker.feed, each, n) for n, each in enumerate(records(files, maker))))


def _pictures(files: Sequence[Path], maker: Maker) -> Iterator[Record]:
    return (Record(f"'{file}'", picture=file) for file in files)


def _sounds(files: Sequence[Path], maker: Maker) -> Iterator[Record]:
    # A decoder takes each as what it begins with, and again with a past.
    times = 2 if maker.encoder is not None and maker.caches.pairs else 1
    for file in files:
        for window in range(maker.windows(Record(f"'{file}'", sound=file))):
            yield from [Record(f"'{file}'", sound=file, window=window)] * times


def _pieces(files: Sequence[Path], maker: Maker) -> Iterator[Record]:
    """Lines of text, as many as make the tokens of the next sample."""
    number = 0
    for file in files:
        held, first = "", 1
        for line_number, line in _text_lines(file, _LINE):
            held, first = (held + line, first) if held.strip() else (line, line_number)
            if len(held) >= _CHARACTERS * (maker.length(number) + 1) and held.strip():
                yield Record(f"'{file}', line {first}", text=held)
                number, held = number + 1, ""
        if held.strip():
            yield Record(f"'{file}', line {first}", text=held)
            number += 1


def _text_lines(file: Path, most: int) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers; longer ones than `most` in pieces.

    Raises:
        BadData: it cannot be read, or is not UTF-8.
    """
    number = 1
    try:
        with file.open(encoding="utf-8-sig") as opened:
            for line in _bounded(opened, most):
                yield number, line
                number += line.endswith("\n")
    except UnicodeDecodeError as error:
        raise BadData(f"'{file}' is not UTF-8 text: {error.reason} near line {number}") from None
    except OSError as error:
        raise BadData(f"'{file}' cannot be read: {error.strerror}") from None


def _bounded(opened: TextIO, most: int) -> Iterator[str]:
    while line := opened.readline(most):
        yield line


def _lines(files: Sequence[Path], inputs: tuple[Input, ...], make: Callable[..., Maker]) -> Samples:
    """A sample of each line: its "text", and fields named like inputs."""
    by_name = {i.name: i for i in inputs}
    line = next(_full_lines(files[:1]), None)
    if line is None:
        raise BadData(f"'{files[0]}' holds no samples")
    first = _object(*line)
    given = [name for name in by_name if name in first[1]]
    if not given and not isinstance(first[1].get("text"), str):
        names = ", ".join(map(repr, itertools.islice(first[1], 6))) or "nothing"
        wanted = ", ".join(map(repr, by_name))
        raise BadData(f'{first[0]} has no "text" that is a string, and none of the inputs {wanted}, but {names}')
    maker = make(["text"] if isinstance(first[1].get("text"), str) else [], given)

    def record(where: str, found: dict[str, Any]) -> Record:
        try:
            arrays = {name: cells.shaped(np.array(found[name]), by_name[name]) for name in given}
        except KeyError as error:
            raise BadData(f"{where} lacks {error}, an array that the first line has") from None
        except (ValueError, TypeError, OverflowError):
            raise BadData(f"{where} holds no array: its rows are not equally long, or no numbers") from None
        text = found.get("text")
        if maker.texts is not None and not isinstance(text, str):
            raise BadData(f'{where} has no "text"')
        return Record(where, text=text, arrays=arrays)

    def read(number: int, line: _Line) -> Any:
        return maker.feed(record(*_object(*line)), number)

    def reads(lines: Iterable[_Line]) -> Iterator[Read]:
        return (functools.partial(read, number, line) for number, line in enumerate(lines))

    def some(limit: int) -> tuple[Reads, str]:
        count_to = lambda most: sum(1 for _ in itertools.islice(_full_lines(files), most + 1))  # noqa: E731
        wanted, among = spread.choose(limit, count_to)
        chosen = spread.Kept(lambda: spread.picked(_full_lines(files), wanted), lambda line: sys.getsizeof(line[2]))
        return lambda: reads(chosen), among

    return Samples(lambda: reads(_full_lines(files)), some)


#: A file, the number of a line, and that line.
_Line = tuple[Path, int, str]


def _full_lines(files: Sequence[Path]) -> Iterator[_Line]:
    """The lines of files that are not empty."""
    return ((file, number, line) for file in files for number, line in _text_lines(file, _MOST_JSON) if line.strip())


def _object(file: Path, number: int, line: str) -> tuple[str, dict[str, Any]]:
    """Where a line stands, and what it says.

    Raises:
        BadData: no object of JSON.
    """
    where = f"'{file}', line {number}"
    try:
        found = limits.parse_json(line.strip())
    except ValueError as error:
        raise BadData(f"{where} is not JSON: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise BadData(f'{where} is {limits.json_word(found)}, not an object with a "text" or the model\'s inputs')
    return where, found


def _tables(files: Sequence[Path], inputs: tuple[Input, ...], make: Callable[..., Maker]) -> Samples:
    by_name = {i.name: i for i in inputs}
    schema = table.schema_of(files[0])
    if schema is None:
        raise BadData(f"'{files[0]}' holds no rows")
    used = columns.columns_of(schema, inputs, files[0])
    parts, named = columns.Parts(files[0], used), tuple(used.given if not used.row else by_name)
    if not named and not used.kinds:
        names = ", ".join(schema.names[:6])
        raise BadData(f"'{files[0]}' has the columns {names}, of which none makes the inputs {', '.join(by_name)}")
    maker = make(used.kinds, named)
    if not used.kinds:
        maker.reading.tell_unused("the samples are numbers of a table, which are taken as they are")

    def record(file: Path, number: int, batch: Any, row: int) -> Record:
        where, used = f"'{file}', row {number}", parts.of(file, batch.schema.names)
        with room.limited():
            arrays = cells.arrays_in(batch, row, used, by_name, file, where)
        picture, sound = (
            None
            if name is None
            else cells.file_in(cells.value_in(batch, row, name, used, where), name, file.parent, where)
            for name in (used.picture, used.sound)
        )
        text = None if used.text is None else cells.value_in(batch, row, used.text, used, where)
        if used.text is not None and text is None:
            raise BadData(f"{where}: column '{used.text}' is empty")
        return Record(where, text, picture, sound, arrays=arrays)

    def reads(found: Iterable[spread.Row]) -> Iterator[Read]:
        for number, (file, batch, row, place) in enumerate(found):
            parts.of(file, batch.schema.names)
            yield functools.partial(_made, maker, functools.partial(record, file, place, batch, row), number)

    def some(limit: int) -> tuple[Reads, str]:
        count_to = lambda most: sum(table.count_of(file, schema.names[0], most) for file in files)  # noqa: E731
        wanted, among = spread.choose(limit, count_to)
        chosen = spread.some_rows(files, parts.types, wanted)
        return lambda: reads(chosen), among

    return Samples(lambda: reads(spread.rows(files, parts.types)), some)


def _made(maker: Maker, record: Callable[[], Record], number: int) -> Any:
    return maker.feed(record(), number)

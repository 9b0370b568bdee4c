"""Which columns of a table make which inputs.

Blanks around a name are of the file, which may be written `a, b, label`, and not of the name: a column is told by what
is left without them, unless an input is called just so. In messages names are as the file has them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.boundary import warn
from onnxq.errors import BadData, listed
from onnxq.files import limits
from onnxq.runtime.session import Input
from onnxq.samples.pictures.images import IMAGE_SUFFIXES
from onnxq.samples.sounds.sound import SOUND_SUFFIXES
from onnxq.samples.tables import rows
from onnxq.samples.tables.named_files import named_files
from onnxq.samples.tables.table import MARKS, is_text, names_of, number_in, plain
from onnxq.samples.texts.text import role_of

_SOUND = re.compile("audio|wav|speech|sound")
_TEXT = ("text", "sentence", "content", "question", "document")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table make what.

    Attributes:
        given: by inputs, the columns named like them.
        row: numbers that are one input together, in their order, or one list of them.
        picture, sound, text: the column for the inputs that are left.
        types: as which columns of a file that is text are read: those that make something as text, the others as
            bytes.
        padded: those of a file that is text with blanks around the name, which are around its texts as well then.
    """

    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    row: tuple[str, ...] = ()
    picture: str | None = None
    sound: str | None = None
    text: str | None = None
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    padded: frozenset[str] = frozenset()

    @property
    def kinds(self) -> set[str]:
        return {kind for kind in ("picture", "sound", "text") if getattr(self, kind) is not None}

    def typed(self, schema: Any) -> Columns:
        """With the types of all columns."""
        used = {*self.given.values(), *self.row, self.picture, self.sound, self.text}
        return dataclasses.replace(self, types={n: "string" if n in used else "binary" for n in schema.names})

    def named(self, names: Sequence[str], file: Path) -> Columns | None:
        """The same of another part of the table, whose columns have these names; None: they are others.

        Blanks around a name may be others, where each is told without them.
        """
        if sorted(names) == sorted(self.types):
            return self
        there = {name.strip(): name for name in names}
        if len(there) != len(names) or sorted(there) != sorted(name.strip() for name in self.types):
            return None

        def new(name: str | None) -> str | None:
            return None if name is None else there[name.strip()]

        padded = (name for own, name in there.items() if own != name and is_text(file) and name not in self.given)
        return Columns(
            {i: there[column.strip()] for i, column in self.given.items()},
            tuple(there[column.strip()] for column in self.row),
            picture=new(self.picture),
            sound=new(self.sound),
            text=new(self.text),
            types={there[name.strip()]: type for name, type in self.types.items()},
            padded=frozenset(padded),
        )


class Parts:
    """A table of several files: what the columns of the first one make, those of the others make too."""

    def __init__(self, first: Path, used: Columns) -> None:
        self._first, self._known = first, {first: used}

    def of(self, file: Path, names: Sequence[str]) -> Columns:
        """The columns of a file that has them by these names.

        Raises:
            BadData: they are others.
        """
        if file not in self._known:
            found = self._known[self._first].named(names, file)
            if found is None:
                raise BadData(f"'{file}' has other columns than '{self._first}'")
            self._known[file] = found
        return self._known[file]

    def types(self, file: Path) -> Mapping[str, str]:
        """As which columns of a file that is text are read.

        Raises:
            BadData: it has others than the first.
        """
        if file not in self._known and is_text(file) and (names := names_of(file)):
            return self.of(file, names).types
        return self._known.get(file, self._known[self._first]).types


def columns_of(schema: Any, inputs: Sequence[Input], file: Path) -> Columns:
    """What a table with this schema has for a model with these inputs.

    Raises:
        BadData: names come twice, or see `rows.row_of`.
    """
    by_name = _by_name(schema.names, inputs, file)
    given = {i.name: column for i in inputs if (column := by_name.get(i.name, by_name.get(i.name.strip()))) is not None}
    every = {field.name: plain(field.type) for field in schema}
    if len(given) == len(inputs) == 1 and rows.is_one_of_several(inputs[0], given[inputs[0].name], every, file):
        given = {}
    rest = [i for i in inputs if i.name not in given]
    types = {name: type for name, type in every.items() if name not in given.values()}
    said = _features(schema)
    pictures = [n for n, type in types.items() if _holds(type) and not _is_sound(n, said)]
    sounds = [n for n, type in types.items() if _holds(type) and _is_sound(n, said)]
    strings = [name for name, type in types.items() if str(type).removeprefix("large_") in ("string", "string_view")]
    takes_pictures = any(i.shape and len(i.shape) == 4 for i in rest)
    takes_sounds = any(i.dtype.kind == "f" for i in rest)
    if len(rest) != 1 or not rows.may_be_row(rest[0], types):
        pictures = pictures or named_files(strings if takes_pictures else (), IMAGE_SUFFIXES, file)
        sounds = sounds or named_files(strings if takes_sounds else (), SOUND_SUFFIXES, file)
    named = types if is_text(file) else strings  # where numbers are texts too
    texts = [by_name[n] for n in _TEXT if by_name.get(n) in named] or [
        n for n in strings if n not in pictures and n not in sounds
    ]
    if is_text(file) and len(schema.names) == 1 and re.search("[;\t]", schema.names[0]):
        mark = MARKS[file.suffix.lower()][0]
        raise BadData(f"'{file}' has one column, {schema.names[0]!r}: the delimiter of {file.suffix} must be {mark}")
    padded = (column for name, column in by_name.items() if name != column and is_text(file))
    made = Columns(
        given,
        (),
        pictures[0] if pictures and takes_pictures else None,
        sounds[0] if sounds and takes_sounds else None,
        texts[0] if texts and any(role_of(i) for i in rest) else None,
        padded=frozenset(padded),
    )
    if made.text is not None and len(texts) > 1 and made.text.strip() not in _TEXT:
        others = ", ".join(f"'{name}'" for name in texts[1:4])
        warn(f"'{file}': '{made.text}' is taken for the texts, not {others}: call the column of the texts 'text'")
    if given or made.kinds or len(rest) != 1:
        return made.typed(schema)
    if (features := by_name.get("features")) is not None and rows.is_list_of_numbers(types.get(features)):
        return Columns(row=(features,)).typed(schema)
    row = rows.row_of(types, strings, rest[0], file)
    if row and rows.are_no_names(row, file):
        warn(
            f"the first line of '{file}' is numbers ({listed(row, 3)}), and taken for names: if it is a row, write a "
            "line of names above it"
        )
    return Columns(row=row).typed(schema)


def _by_name(columns: Sequence[str], inputs: Sequence[Input], file: Path) -> dict[str, str]:
    """The columns of a table by what they are called.

    Raises:
        BadData: two are called the same, or a quote of a name is none.
    """
    wanted = {i.name for i in inputs}
    names = [column if column in wanted else column.strip() for column in columns]
    (most, times), *_ = Counter(names).most_common(1) or [("", 0)]
    if times > 1:
        where = rows.NO_NAMES if is_text(file) and number_in(most) is not None else ""
        blanks = ", with or without blanks around them" if columns.count(most) < times else ""
        raise BadData(f"'{file}' has {times} columns '{most}': names must not come twice{blanks}{where}")
    for column, name in zip(columns, names, strict=True):
        if is_text(file) and column != name and name.startswith('"'):
            raise BadData(f"'{file}': a blank stands before the quote of {name}, which then is none: leave it out")
    return dict(zip(names, columns, strict=True))


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
    is_pair = text.startswith("struct<") and "bytes: " in text and "path: " in text
    return is_pair or text.removeprefix("large_") in ("binary", "binary_view")

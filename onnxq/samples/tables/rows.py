"""Which columns of a table make the row of a single input: those of numbers, without an id and without the answer.

A column that is left out without need moves all behind it, and what is left out by mistake makes room for an id or for
the answer. So marks in a column of numbers, as of what is missing, do not make it one of texts; and of what the number
of columns and their names do not tell, nothing is guessed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxq.errors import BadData
from onnxq.files import room
from onnxq.runtime.session import Input
from onnxq.samples.tables.table import BATCH, batches, is_empty, is_text, number_in

_NUMBERS = re.compile(r"u?int\d|float|double|halffloat|bool|decimal")
_ANSWER = re.compile("label|target|class|y", re.IGNORECASE)
#: What may be one where none is called so: `fine_label`, and neither `Pclass` nor `target_temp`.
_LIKE_AN_ANSWER = re.compile("(?i:.*[ _.-](label|target))|.*[a-z](Label|Target)")
#: Of rows, some as pandas writes them.
_ID = re.compile(r"(?i:(.*[ _.-])?id|index|unnamed: 0|__index_level_\d+__|)|.*[a-z]I[dD]")
#: Rows by which texts are told from numbers with marks among them; and characters of a word that is no number.
_ROWS, _LONG = 1024, 400


def row_of(types: Mapping[str, Any], texts: Sequence[str], i: Input, file: Path) -> tuple[str, ...]:
    """The columns of the row of `i`; none where there are no numbers.

    Args:
        types: of all columns.
        texts: those of them that hold texts.

    Raises:
        BadData: they are more or fewer than `i` takes, or which of them it takes is not to be told.
    """
    mixed = _mixed(texts, file)
    numbers = [name for name, type in types.items() if name in mixed or _NUMBERS.match(str(type))]
    answers = [name for name in numbers if _ANSWER.fullmatch(name)]
    ids = [name for name in numbers if _ID.fullmatch(name)]
    width = i.shape[-1] if i.shape else None
    if not numbers:
        return ()
    if not isinstance(width, int):
        left_out = {*answers, *(name for name in ids if name in mixed)}
        return tuple(name for name in numbers if name not in left_out) or tuple(numbers)
    answers = answers or [name for name in numbers if _LIKE_AN_ANSWER.fullmatch(name)]
    row = _without(numbers, answers, ids, len(numbers) - width)
    if row is None:
        also = f"; {_few(mixed)} with texts among them" if mixed else ""
        raise BadData(
            f"'{file}' has {len(numbers)} columns of numbers ({_few(numbers)}{also}), '{i.name}' takes {width}: leave "
            "out the others, or name columns like the model's inputs"
        )
    is_place = {"x", "y"} <= {name.lower() for name in row}  # where y is no answer
    doubtful = [name for name in (*answers, *ids) if name in row and not (is_place and name.lower() == "y")]
    others = [name for name in types if name not in numbers]
    if not doubtful and len(row) < len(numbers) and {*ids} - {*row} and not answers:
        doubtful = [row[-1]]  # without the id as many as the model takes, of which one may be the answer
    if doubtful and others:
        raise BadData(
            f"'{file}': whether '{doubtful[0]}' is one of the {width} numbers that '{i.name}' takes, or "
            f"'{others[0]}', which holds none, cannot be told: leave out the columns that are not for the model"
        )
    return row


def _without(numbers: list[str], answers: list[str], ids: list[str], excess: int) -> tuple[str, ...] | None:
    """The columns without those that are too many; None where names do not say which these are."""
    choices = [[]] if excess == 0 else [[*names] for names in (answers, ids) if len(names) == excess == 1]
    if len(answers) == len(ids) == 1 and excess == 2:
        choices = [[*answers, *ids]]
    if len(choices) != 1:
        return None
    return tuple(name for name in numbers if name not in choices[0])


def _mixed(texts: Sequence[str], file: Path) -> list[str]:
    """Columns of texts that are numbers at least as often, by all cells or by different ones, in the first rows."""
    cells: dict[str, list[str]] = {name: [] for name in texts}
    read = batches(file, dict.fromkeys(texts, "binary") if is_text(file) else None) if texts else iter(())
    for batch in itertools.islice(read, _ROWS // BATCH):
        for name, words in cells.items():
            with room.limited():
                found = batch.column(name).to_pylist()
            words += [word for each in found if each is not None and not is_empty(word := _cut(each))]
    return [name for name, words in cells.items() if _are_mostly_numbers(words) or _are_mostly_numbers(set(words))]


def _cut(cell: str | bytes) -> str:
    word = cell[:_LONG]
    return word if isinstance(word, str) else word.decode(errors="replace")


def _are_mostly_numbers(words: Sequence[str] | set[str]) -> bool:
    numbers = sum(number_in(word) is not None for word in words)
    return numbers > 0 and 2 * numbers >= len(words)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")

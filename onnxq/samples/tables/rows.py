"""Which columns of a table make the row of a single input: those of numbers, without an id and without the answer.

A column that is left out without need moves all behind it, and what is left out by mistake makes room for an id or for
the answer. So marks in a column of numbers, as of what is missing, do not make it one of texts; and of what the number
of columns and their names do not tell, nothing is guessed. Beside columns of texts, which a program may give the model
as codes, as many columns of numbers as the model takes may be so by chance, the answer among them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxq.boundary import warn
from onnxq.errors import BadData, amount
from onnxq.runtime.session import Input
from onnxq.samples.fit import shape_words
from onnxq.samples.tables.table import is_text, number_in
from onnxq.samples.tables.words import words_of

_NUMBERS = re.compile(r"u?int\d|float|double|halffloat|bool|decimal")
_TIMES = re.compile("timestamp|date|time|duration")
_ANSWER = re.compile("labels?|targets?|class|class_label|outcome|survived|y", re.IGNORECASE)
#: What may be one where none is called so: `fine_label`, and neither `Pclass` nor `target_temp`; a diagnosis, by which
#: other models predict.
_LIKE_AN_ANSWER = re.compile("(?i:.*[ _.-](label|target)|diagnosis)|.*[a-z](Label|Target)")
#: Of rows, some as pandas writes them.
_ID = re.compile(r"(?i:(.*[ _.-])?id|index|unnamed: 0|__index_level_\d+__|)|.*[a-z]I[dD]")
#: How often a text comes that is one of a few classes.
_OFTEN = 5
#: What helps where a first line is a row.
NO_NAMES = ", and its first line must be names"
_LEAVE_OUT = "leave out the columns that are not for the model"


def row_of(types: Mapping[str, Any], texts: Sequence[str], i: Input, file: Path) -> tuple[str, ...]:
    """The columns of the row of `i`; none where there are no numbers.

    Args:
        types: of all columns.
        texts: those of them that hold texts.

    Raises:
        BadData: they are more or fewer than `i` takes, or which of them or how many steps it takes is not to be told.
    """
    words = words_of(texts, file)
    mixed = [name for name, found in words.items() if _are_mostly_numbers(found) or _are_mostly_numbers(set(found))]
    known = {*mixed}
    of_numbers = {name: name in known or is_number(type) for name, type in types.items()}
    numbers = [name for name in types if of_numbers[name]]
    others = [name for name, type in types.items() if not (of_numbers[name] or _is_nothing(type))]
    answers = [name for name in numbers if _ANSWER.fullmatch(name.strip())]
    ids = [name for name in numbers if _ID.fullmatch(name.strip())]
    width = _width(i)
    if not numbers:
        return ()
    if _has_open_steps(i):
        pictures = "images, or " if len(i.shape or ()) == 4 else ""
        raise BadData(
            f"'{file}': '{i.name}' takes {shape_words(i.shape)}, whose open sizes a row of a table does not tell: give "
            f"{pictures}arrays of the sizes in use (.npz)"
        )
    if width is None:
        return _of_any_width(numbers, others, answers, [name for name in ids if name in mixed], i, file)
    answers = answers or [name for name in numbers if _LIKE_AN_ANSWER.fullmatch(name.strip())]
    row, axes = _without(numbers, answers, ids, len(numbers) - width), _in_words(_axes(i))
    if row is None:
        takes = f"{width} ({axes})" if axes else f"{width}"
        names = NO_NAMES if are_no_names(numbers, file) else ""
        also = f"; {_few(mixed)} with texts among them" if mixed else ""
        raise BadData(
            f"'{file}' has {amount(len(numbers), 'column')} of numbers ({_few(numbers)}{also}), '{i.name}' takes "
            f"{takes}: {_way_out(i, len(numbers) - width, answers, ids)}{names}"
        )
    doubtful = _doubtful(row, [*answers, *ids])
    if others and (doubtful or not (_is_of_places(row) or {*answers} - {*row} or any(map(_is_answer, others)))):
        _tell_classes(row, doubtful, others, words, i, file)
    if axes:
        warn(f"'{file}': the {width} numbers of a row are '{i.name}' of {axes}, in their order and unscaled")
    return row


def _of_any_width(
    numbers: Sequence[str], others: Sequence[str], answers: Sequence[str], ids: Sequence[str], i: Input, file: Path
) -> tuple[str, ...]:
    """The columns of `numbers` without the answer and without `ids`.

    Raises:
        BadData: there are `others`.
    """
    if others:
        raise BadData(
            f"'{file}': how many numbers '{i.name}' takes is open, and '{others[0]}' holds none: {_LEAVE_OUT}"
        )
    are_places = _is_of_places(numbers)
    left_out = {*(name for name in answers if not (are_places and _is_y(name))), *ids}
    return tuple(name for name in numbers if name not in left_out) or tuple(numbers)


def _tell_classes(
    row: Sequence[str],
    doubtful: str | None,
    others: Sequence[str],
    words: Mapping[str, Sequence[str]],
    i: Input,
    file: Path,
) -> None:
    """That the only column without numbers is left out, as it holds classes.

    Raises:
        BadData: it does not, or there are more, or one of `row` is `doubtful`: the model may take another in its place.
    """
    if not doubtful and len(others) == 1 and _are_classes(words.get(others[0], ())):
        warn(f"'{file}': the row of '{i.name}' is {_few(row)}; '{others[0]}', whose texts are classes, is left out")
        return
    hint = "" if doubtful else f", or call '{others[0]}' 'label' if it is the answer"
    if are_no_names(row, file):
        hint = NO_NAMES
    place = "the number" if _width(i) == 1 else f"one of the {_width(i)} numbers"
    raise BadData(
        f"'{file}': whether '{doubtful or row[-1]}' is {place} that '{i.name}' takes, or '{others[0]}', which holds "
        f"none, cannot be told: {_LEAVE_OUT}{hint}"
    )


def are_no_names(numbers: Sequence[str], file: Path) -> bool:
    """Whether what should name columns of numbers is numbers itself, and not 0, 1, 2, … as pandas calls them."""
    found = [number_in(name) for name in numbers]
    return is_text(file) and None not in found and found != list(range(len(found)))


def is_number(type: Any) -> bool:
    return _NUMBERS.match(str(type)) is not None


def may_be_row(i: Input, types: Mapping[str, Any]) -> bool:
    """Whether there are as many columns of numbers as a row of `i` has."""
    width = _width(i)
    return width is not None and sum(map(is_number, types.values())) >= width


def is_list_of_numbers(type: Any) -> bool:
    return "list" in str(type).partition("<")[0] and is_number(type.value_type)


def is_one_of_several(i: Input, column: str, types: Mapping[str, Any], file: Path) -> bool:
    """Whether a column that is called like the only input is one of the numbers of its row: x of x, y, z.

    Raises:
        BadData: that is not to be told.
    """
    if not is_number(types[column]):
        return False
    if _has_open_steps(i) or _width(i) is not None or len(i.shape or ()) < 2:
        return _has_open_steps(i) or _width(i) not in (None, 1)
    numbers = [name for name, type in types.items() if is_number(type)]
    others = [name for name in numbers if name != column and not _is_answer(name) and not _ID.fullmatch(name.strip())]
    is_of_places = _is_of_places(numbers) and "z" in _lowered(numbers)  # of x and y, y may be the answer
    if others and not is_of_places:
        raise BadData(
            f"'{file}': whether '{i.name}', which takes any number of columns, is the one of that name alone, or with "
            f"'{others[0]}', cannot be told: {_LEAVE_OUT}, or call that one otherwise"
        )
    return is_of_places


def _axes(i: Input) -> list[int | None]:
    """Those along which the numbers of a row lie, all but that of the batch; None is an open one."""
    axes = [dim if isinstance(dim, int) and dim > 0 else None for dim in i.shape or ()]
    return axes[1:] or axes


def _width(i: Input) -> int | None:
    """How many numbers a row has, if not any number will do."""
    axes = _axes(i)
    return math.prod(dim or 0 for dim in axes) or None if axes else None


def _has_open_steps(i: Input) -> bool:
    """Whether it is open how long a sample is along other axes than that of a row: steps of a sequence, pixels."""
    *others, last = _axes(i) or [None]
    return None in others or (last is None and any(dim != 1 for dim in others))


def _in_words(axes: Sequence[int | None]) -> str:
    """Axes behind each other that are more than one number long; nothing where only one is."""
    return " × ".join(map(str, axes)) if None not in axes and sum(dim != 1 for dim in axes) > 1 else ""


def _doubtful(row: Sequence[str], suspects: Sequence[str]) -> str | None:
    """One of `row` that its name says to be an id or the answer."""
    return next((name for name in suspects if name in row and not (_is_of_places(row) and _is_y(name))), None)


def _is_of_places(row: Sequence[str]) -> bool:
    """Whether y is no answer."""
    return {"x", "y"} <= _lowered(row)


def _lowered(names: Sequence[str]) -> set[str]:
    return {name.strip().lower() for name in names}


def _is_y(name: str) -> bool:
    return name.strip() in ("y", "Y")


def _is_answer(name: str) -> bool:
    name = name.strip()
    return bool(_ANSWER.fullmatch(name) or _LIKE_AN_ANSWER.fullmatch(name))


def _without(numbers: list[str], answers: list[str], ids: list[str], excess: int) -> tuple[str, ...] | None:
    """The columns without those that are too many; None where names do not say which these are."""
    choices = [[]] if excess == 0 else [[*names] for names in (answers, ids) if len(names) == excess == 1]
    if len(answers) == len(ids) == 1 and excess == 2:
        choices = [[*answers, *ids]]
    if len(choices) != 1:
        return None
    return tuple(name for name in numbers if name not in choices[0])


def _are_mostly_numbers(words: Sequence[str] | set[str]) -> bool:
    numbers = sum(number_in(word) is not None for word in words)
    return numbers > 0 and 2 * numbers >= len(words)


def _are_classes(words: Sequence[str]) -> bool:
    """Whether texts are a few that come again and again."""
    times = Counter(words).values()
    return len(times) > 1 and min(times) > 1 and _OFTEN * len(times) <= len(words)


def _is_nothing(type: Any) -> bool:
    """Whether a column has no cells, or times, which no model takes."""
    return str(type) == "null" or _TIMES.match(str(type)) is not None


def _way_out(i: Input, excess: int, answers: Sequence[str], ids: Sequence[str]) -> str:
    """What helps where so many columns of numbers are too many."""
    if excess < 0:
        return "give a table with all of them as numbers, or arrays (.npz)"
    if _width(i) == 1:
        return f"leave out the others, or call the one '{i.name}'"
    is_all = excess == 1 or (excess == 2 and len(ids) == 1)
    return "leave out the others" + (", or call the answer 'label'" if is_all and not answers else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")

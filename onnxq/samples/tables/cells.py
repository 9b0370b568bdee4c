"""The cells of a row become arrays, and files."""

from __future__ import annotations

import contextlib
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.files import guard
from onnxq.runtime.session import Feed, Input
from onnxq.samples.fit import Label
from onnxq.samples.tables.columns import Columns
from onnxq.samples.tables.table import is_empty, is_text, number_in

#: Below it a float is one integer.
_EXACT = 2.0**53


def value_in(batch: Any, row: int, column: str, columns: Columns, where: str) -> Any:
    """A cell, of which blanks around it are left out where the file has them around the column's name too.

    Raises:
        BadData: a blank stands before its quote, which then is a letter.
    """
    value = batch.column(column)[row].as_py()
    if column not in columns.padded or not isinstance(value, str):
        return value
    word = value.strip()
    if len(word) > 1 and word != value and word[0] == word[-1] == '"':
        told = f"a blank stands before the quote of {word:.60}, which then is none: leave it out"
        raise BadData(f"{where}: '{column}': {told}")
    return word


def file_in(value: Any, column: str, folder: Path, where: str) -> bytes | Path:
    """The picture or sound that a cell of `column` has: what is in the table, or a file beside it.

    Raises:
        BadData: there is neither.
    """
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
    if found and not Path(found).is_relative_to(os.path.realpath(folder)):  # whether it is there or not
        raise BadData(f"{what}, outside of the table's folder: put it there, or its bytes into the table")
    if not os.path.isfile(found):
        raise BadData(f"{what}, which is not there")
    guard.remember_kind(Path(found))
    return Path(found)


def arrays_in(batch: Any, row: int, columns: Columns, inputs: dict[str, Input], file: Path, where: str) -> Feed:
    """The inputs that columns hold."""

    def array(column: str, i: Input) -> NDArray:
        what = f"{where}: '{column}'"
        if is_text(file):
            return _of_text(value_in(batch, row, column, columns, where), what, i)
        return _array(batch.column(column)[row], what, i)

    found = {
        name: shaped(_whole(array(column, inputs[name]), inputs[name]), inputs[name])
        for name, column in columns.given.items()
    }
    if columns.row:
        (rest,) = (i for name, i in inputs.items() if name not in columns.given)
        numbers = [(name, array(name, rest)) for name in columns.row]
        for name, x in numbers:
            if x.dtype.kind == "O":
                raise BadData(f"{where}: '{name}' is the text {x.item()!r:.60}, and a row of '{rest.name}' has numbers")
        if numbers[0][1].ndim:  # a list is all of a row
            made = numbers[0][1]
        else:
            is_exact = rest.dtype.kind in "iub" and all(x.dtype.kind in "iub" for _, x in numbers)
            made = np.array([x.item() if is_exact else float(x) for _, x in numbers])
        found[rest.name] = shaped(_whole(made, rest), rest)
    return found


def _whole(x: NDArray, i: Input) -> NDArray:
    """Of floats for an input of integers the same integers, if all are: pandas writes a column with a gap so."""
    if i.dtype.kind in "iub" and x.dtype.kind == "f" and (np.abs(x) < _EXACT).all() and (x == np.rint(x)).all():
        return x.astype(np.int64)
    return x


def _of_text(word: str, what: str, i: Input) -> NDArray:
    """Of a cell that is a text: itself, or the number that it says, whichever the input takes."""
    if i.dtype.kind == "O" and not isinstance(i, Label):
        return np.array(word, object)
    if is_empty(word):
        _require_missing(what, i)
        return np.array(float("nan"))
    found = number_in(word)
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
    """Of a cell: a number, a text, an array, or lists in lists, which must all be as long as the first."""
    type = value.type
    is_tensor = str(type).startswith("extension<arrow.fixed_shape_tensor")
    if is_tensor and value.is_valid:
        shape = type.shape  # as the numbers lie, of which the axes may come in another order
        return _array(value.value, what, i).reshape(shape).transpose(type.permutation or range(len(shape)))
    shape = []
    is_list = is_tensor or "list" in str(type).partition("<")[0]
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
    if isinstance(found, Decimal):
        found = float(found)
    if isinstance(found, (bool, int, float, str, list)):
        with contextlib.suppress(ValueError):  # of lists of different lengths
            return np.array(found, object if isinstance(found, str) else None)
    raise BadData(f"{what} is of type {value.type}, not a number, a text or a list of them")


def shaped(x: NDArray, i: Input) -> NDArray:
    """A row's array with the axes of its input: the batch in front, and what a flat list left out.

    An axis of an open size that is not there stays so, as that it is 1 long is not said; a single number is one of any.
    """
    shape = i.shape
    if shape is None or x.ndim > len(shape):
        return x
    missing = len(shape) - x.ndim
    if not missing:
        return x
    first, *behind = [dim if isinstance(dim, int) and dim > 0 else 0 for dim in shape]
    width, first = math.prod(behind), first or 1
    if width and x.size in (width, first * width):
        x = x.reshape(-1, *behind)
    elif 0 in behind[: missing - 1] and len(behind) > 1:
        return x
    else:
        x = x.reshape((1,) * missing + x.shape)
    return np.repeat(x, first, axis=0) if len(x) == 1 else x

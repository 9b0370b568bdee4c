"""Some rows of tables, evenly spread over all: tables are often sorted, and the first rows then all alike.

Lines of JSON are a table too.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from onnxq.samples.tables import table

#: Bytes of rows that are kept from one pass over the files to the next.
_KEPT = 1 << 26
_GOLDEN = (5**0.5 - 1) / 2
#: Rows of all files that are counted, and over which those chosen are spread.
MOST_ROWS = 1 << 24

#: A file, a batch of its rows, where in it a row is, and which of the file it is.
Row = tuple[Path, Any, int, int]
#: As which columns of a file that is text are read.
Types = Callable[[Path], Mapping[str, str]]
T = TypeVar("T")


class Kept(Generic[T]):
    """What `found` gives, which is kept from one pass to the next unless it is large."""

    def __init__(self, found: Callable[[], Iterator[T]], size: Callable[[T], int]) -> None:
        self._found, self._size = found, size
        self._kept: list[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self._kept) if self._kept is not None else self._first_time()

    def _first_time(self) -> Iterator[T]:
        kept: list[T] = []
        size = 0
        for each in self._found():
            size += self._size(each)
            if size <= _KEPT:
                kept.append(each)
            yield each
        if size <= _KEPT:
            self._kept = kept


def rows(files: Sequence[Path], types: Types) -> Iterator[Row]:
    """All rows of files, one after the other."""
    for file in files:
        numbers = itertools.count()
        for batch in table.batches(file, types(file)):
            for row in range(batch.num_rows):
                yield file, batch, row, next(numbers)


def some_rows(files: Sequence[Path], types: Types, wanted: Sequence[int]) -> Kept[Row]:
    """Copies of those of these numbers."""
    return Kept(lambda: _found(files, types, wanted), lambda row: int(row[1].get_total_buffer_size()))


def _found(files: Sequence[Path], types: Types, wanted: Sequence[int]) -> Iterator[Row]:
    rest, first = deque(wanted), 0
    for file in files:
        start = first
        for group, size in enumerate(table.groups_of(file) or [None]):
            if size is not None and (not rest or rest[0] >= first + size):
                first += size
                continue
            for batch in table.batches(file, types(file), group=None if size is None else group):
                while rest and rest[0] < first + batch.num_rows:
                    number = rest.popleft()
                    yield file, table.alone(batch, number - first), 0, number - start
                first += batch.num_rows
                if not rest:
                    return


def picked(every: Iterable[T], wanted: Sequence[int]) -> Iterator[T]:
    """Those of these numbers; nothing is read behind the last."""
    rest = deque(wanted)
    for number, each in enumerate(every):
        if not rest:
            return
        if number == rest[0]:
            rest.popleft()
            yield each


def choose(limit: int, count_to: Callable[[int], int]) -> tuple[list[int], str]:
    """The numbers of `limit` rows of more, evenly spread; and over how many, in words: "900", "first 16,777,216".

    Args:
        count_to: how many there are, as far as they are counted: to a little over what is given.
    """
    most = max(limit, MOST_ROWS)
    count = count_to(most)
    return chosen(limit, min(count, most)), f"{count:,}" if count <= most else f"first {most:,}"


def chosen(limit: int, count: int) -> list[int]:
    """`limit` numbers below `count`, one of each of as many stretches, here and there: classes may take turns."""
    ends = [i * count // limit for i in range(limit + 1)]
    return [a + int(i * _GOLDEN % 1 * (b - a)) for i, (a, b) in enumerate(itertools.pairwise(ends))]

"""Some rows of tables, evenly spread over all: tables are often sorted, and the first rows then all alike."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxq.samples.tables import table

#: Bytes of rows that are kept from one pass over the files to the next.
_KEPT = 1 << 26
_GOLDEN = (5**0.5 - 1) / 2
#: Rows of all files that are counted; of more the first will do.
MOST_ROWS = 1 << 24

#: A file, a batch of its rows, where in it a row is, and which of the file it is.
Row = tuple[Path, Any, int, int]


class Rows:
    """The rows of files one after the other, all or those of some numbers, of which copies are kept unless large."""

    def __init__(
        self, files: Sequence[Path], types: Mapping[str, str] | None, wanted: Sequence[int] | None = None
    ) -> None:
        self._files, self._types, self._wanted = files, types, wanted
        self._kept: list[Row] | None = None

    def __iter__(self) -> Iterator[Row]:
        if self._wanted is None:
            return self._all()
        return iter(self._kept) if self._kept is not None else self._some(self._wanted)

    def _all(self) -> Iterator[Row]:
        for file in self._files:
            numbers = itertools.count()
            for batch in table.batches(file, self._types):
                for row in range(batch.num_rows):
                    yield file, batch, row, next(numbers)

    def _some(self, numbers: Sequence[int]) -> Iterator[Row]:
        kept: list[Row] = []
        size = 0
        for found in self._found(numbers):
            size += found[1].get_total_buffer_size()
            if size <= _KEPT:
                kept.append(found)
            yield found
        if size <= _KEPT:
            self._kept = kept

    def _found(self, numbers: Sequence[int]) -> Iterator[Row]:
        rest, first = deque(numbers), 0
        for file in self._files:
            start = first
            for group, size in enumerate(table.groups_of(file) or [None]):
                if size is not None and (not rest or rest[0] >= first + size):
                    first += size
                    continue
                for batch in table.batches(file, self._types, group=None if size is None else group):
                    while rest and rest[0] < first + batch.num_rows:
                        number = rest.popleft()
                        yield file, table.alone(batch, number - first), 0, number - start
                    first += batch.num_rows
                    if not rest:
                        return


def chosen(limit: int, count: int) -> list[int]:
    """`limit` numbers below `count`, one of each of as many stretches, here and there: classes may take turns."""
    if count > MOST_ROWS:
        return list(range(limit))
    ends = [i * count // limit for i in range(limit + 1)]
    return [a + int(i * _GOLDEN % 1 * (b - a)) for i, (a, b) in enumerate(itertools.pairwise(ends))]

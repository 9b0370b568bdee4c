"""Evidence of a part of the samples, which adds up: of a shard, or of as many as were seen before a run was stopped.

It lies in a file of the same kind as that of all samples (`evidence.py`), with two differences: `n.gram` is float64,
and is rounded when all parts are in, so that they add up to what one run sees; and `n.kept` says how many of `n.rows`
are of each sample held back, so that these come into the order of one run.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadRecipe
from onnxq.summaries.evidence import Index, add_arrays, add_index, add_input, load_array, open_index, rows_seen
from onnxq.summaries.gram import Gram, finite_rows, spread_out

Shape = tuple[int, int]


@dataclasses.dataclass
class Seen:
    """What was seen of one input.

    Attributes:
        rows: of each sample held back, [rows, groups, K].
    """

    gram: Gram
    rows: list[NDArray[np.float32]] = dataclasses.field(default_factory=list)

    @classmethod
    def nothing(cls, groups: int, k: int) -> Seen:
        return cls(Gram.empty(groups, k))

    def hold(self, x: NDArray | None, count: int) -> None:
        """Keep at most so many rows of a sample held back; None: it had none."""
        rows = np.zeros((0, *self.gram.sums.shape[:2]), np.float32) if x is None else finite_rows(x)
        self.rows.append(spread_out(rows, count))

    def add_to(self, file: Path, number: int, *, is_part: bool) -> None:
        """Leave it in `file` under this number, as it is of a part of the samples or of all."""
        if not is_part:
            add_input(file, number, self.gram.rounded(), self.rows)
            return
        shape = (0, *self.gram.sums.shape[:2])
        rows = np.concatenate([np.zeros(shape, np.float32), *self.rows])
        kept = np.array([len(each) for each in self.rows], np.int64)
        add_arrays(
            file, number, {"gram": self.gram.sums, "rows": rows, "kept": kept, "count": np.array(self.gram.rows)}
        )


def write_part(file: Path, index: Index, seen: Iterable[Seen]) -> None:
    """A file of what was `seen`, in the order of the index."""
    for number, each in enumerate(seen):
        each.add_to(file, number, is_part=True)
    add_index(file, index)


@dataclasses.dataclass(frozen=True)
class Part:
    """A file of a part of the samples, whose arrays are read when they are asked for.

    Attributes:
        shapes: (groups, K) of each input.
    """

    file: Path
    index: Index
    shapes: tuple[Shape, ...]

    def seen(self, number: int) -> Seen:
        """
        Raises:
            BadRecipe: what was kept is no part of the rows.
        """
        rows, kept = (load_array(self.file, f"{number}.{what}") for what in ("rows", "kept"))
        counts = [int(count) for count in kept]
        if min(counts, default=0) < 0 or sum(counts) != len(rows):
            raise BadRecipe(f"the evidence '{self.file}' is not a file of evidence: its rows do not add up")
        ends = [0, *itertools.accumulate(counts)]
        parts = [rows[start:end] for start, end in itertools.pairwise(ends)]
        return Seen(Gram(load_array(self.file, f"{number}.gram"), rows_seen(self.file, number)), parts)


def open_part(file: Path) -> Part:
    """
    Raises:
        BadRecipe: it is damaged, or no file of a part of the samples.
    """
    index, found = open_index(file)
    if index.shard is None and not index.seen:
        raise BadRecipe(f"'{file}' is not a shard: it holds evidence of all the data already")
    if index.shard is not None and not 1 <= index.shard[0] <= index.shard[1]:
        raise BadRecipe(f"the evidence '{file}' is not a file of evidence: there is no such shard")
    nothing: tuple[tuple[int, ...], np.dtype] = (), np.dtype(bool)
    shapes: list[Shape] = []
    for number, name in enumerate(index.inputs):
        (gram, kind), rows, kept = (found.get(f"{number}.{what}", nothing) for what in ("gram", "rows", "kept"))
        is_square = len(gram) == 3 and gram[1] == gram[2] and kind == np.float64
        if not is_square or rows != ((*rows[0][:1], *gram[:2]), np.dtype(np.float32)):
            raise BadRecipe(f"the evidence '{file}' is not a file of evidence: '{name}' is damaged")
        if len(kept[0]) != 1 or kept[1] != np.int64:
            raise BadRecipe(f"the evidence '{file}' is not a file of evidence: '{name}' is damaged")
        shapes.append((gram[0], gram[1]))
    return Part(file, index, tuple(shapes))


def merge(files: Sequence[Path], output: Path) -> Index:
    """Leave in `output` what one run over all samples would have, from the files of all shards, in any order.

    Raises:
        BadRecipe: shards of different models, data or divisions, one that is missing or one that is there twice.
    """
    parts = _in_order([open_part(file) for file in files])
    index = msgspec.structs.replace(parts[0].index, shard=None)
    for number in range(len(index.inputs)):
        _sum(parts, number).add_to(output, number, is_part=False)
    add_index(output, index)
    return index


def _sum(parts: Sequence[Part], number: int) -> Seen:
    first = parts[0].seen(number)
    sums, rows, count = first.gram.sums, [first.rows], first.gram.rows
    for part in parts[1:]:
        more = part.seen(number)
        sums += more.gram.sums
        count += more.gram.rows
        rows.append(more.rows)
    return Seen(Gram(sums, count), list(_in_turns(rows, parts[0].file)))


def _in_turns(rows: Sequence[Sequence[NDArray]], file: Path) -> Iterator[NDArray]:
    """Rows of each sample held back, of which every shard has seen every n-th."""
    counts, total = [len(each) for each in rows], sum(map(len, rows))
    if counts != [len(range(i, total, len(rows))) for i in range(len(rows))]:
        raise BadRecipe(f"the shards of '{file}' have not seen the samples in turns: gather them again")
    for i in range(total):
        yield rows[i % len(rows)][i // len(rows)]


def _in_order(parts: Sequence[Part]) -> list[Part]:
    first, found = parts[0], dict[int, Part]()
    for part in parts:
        if part.index.shard is None or part.index.seen:
            raise BadRecipe(f"'{part.file}' is of a run that was stopped: run the same command again, which goes on")
        for what in ("model", "data"):
            if getattr(part.index, what) != getattr(first.index, what):
                other = "other data" if what == "data" else f"another {what}"
                raise BadRecipe(f"'{part.file}' was made with {other} than '{first.file}'")
        number, count = part.index.shard
        assert first.index.shard is not None
        if (count, part.index.inputs, part.shapes) != (first.index.shard[1], first.index.inputs, first.shapes):
            raise BadRecipe(
                f"'{part.file}' was made with other options than '{first.file}': gather both in the same way"
            )
        if number in found:
            raise BadRecipe(f"shard {number} of {count} is given twice: '{found[number].file}' and '{part.file}'")
        found[number] = part
    assert first.index.shard is not None
    count = first.index.shard[1]
    if len(found) < count:
        missing = itertools.islice((str(n) for n in range(1, count + 1) if n not in found), 10)
        raise BadRecipe(f"shard {', '.join(missing)} of {count} is missing")
    return [found[number] for number in sorted(found)]

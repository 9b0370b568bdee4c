"""What columns of texts hold in the first rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from onnxq.files import room
from onnxq.samples.tables.table import BATCH, batches, is_empty, is_text

#: Rows by which it is told what texts are; and characters of a word that is no number.
_ROWS, _LONG = 1024, 400


def words_of(texts: Sequence[str], file: Path) -> dict[str, list[str]]:
    """What columns of texts hold in the first rows, if anything."""
    cells: dict[str, list[str]] = {name: [] for name in texts}
    read = batches(file, dict.fromkeys(texts, "binary") if is_text(file) else None) if texts else iter(())
    for batch in itertools.islice(read, _ROWS // BATCH):
        for name, words in cells.items():
            with room.limited():
                found = batch.column(name).to_pylist()
            words += [word for each in found if each is not None and not is_empty(word := _cut(each))]
    return cells


def _cut(cell: str | bytes) -> str:
    word = cell[:_LONG]
    return word if isinstance(word, str) else word.decode(errors="replace")

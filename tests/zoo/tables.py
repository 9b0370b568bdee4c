"""Tables in documents that scripts here write, and read again to replace some rows."""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeVar


class TableRow:
    """A dataclass of texts, one a column."""

    def __str__(self) -> str:
        cells: Any = self
        return f"| {' | '.join(astuple(cells))} |"


T = TypeVar("T")


def read_rows(path: Path, kind: type[T], header: tuple[str, ...]) -> list[T]:
    """The rows of a table of this kind that was written earlier; none where there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines if line.startswith("| ")]
    wanted: Any = kind
    return [kind(*row) for row in cells if len(row) == len(fields(wanted)) and row[0] != header[0]]

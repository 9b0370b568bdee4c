"""What a person is shown of a folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Group
from rich.filesize import decimal as _bytes
from rich.table import Table
from rich.text import Text

from onnxq.checking.models import Check
from onnxq.errors import amount, listed, one_line
from onnxq.folders.compare import FolderCheck
from onnxq.folders.contents import Folder
from onnxq.folders.result import FolderResult, PartResult
from onnxq.plan import Method
from onnxq.quality import MAX_DB

#: Files named in a line; the report has all.
LISTED = 16
#: What figures on them are worth.
MADE_UP = "made-up inputs show where a model is weak, not how accurate it is on your data: give --data"


def folder_table(result: FolderResult) -> Group:
    """A line for each part, their sum, and what was copied or left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("part", "becomes", "size", "of float", "error", "speed", "note"):
        table.add_column(column, overflow="fold", justify="right" if column in ("of float", "error") else "left")
    for part in result.parts:
        table.add_row(part.name, _becomes(part), *_sizes(part.bytes_before, part.bytes_after), *_proof(part), part.note)
    if len(result.parts) > 1:
        table.add_row("all", "", *_sizes(result.bytes_before, result.bytes_after), "", "", "", style="bold")
    lines = []
    if result.shared:
        lines.append(
            f"shared   {amount(result.shared, 'weight')} of several parts, each with one format in all of them"
        )
    if result.copied:
        lines.append(f"copied   {_listed(result.copied)}")
    for why in dict.fromkeys(result.left_out.values()):
        files = [file for file, reason in result.left_out.items() if reason == why]
        lines.append(f"left out {_listed(files)}: {why}")
    lines += _all_notes({part.name: _notes(part) for part in result.parts}, result.notes)
    return Group(table, Text(), *(Text(one_line(line)) for line in lines))


def _all_notes(of_parts: Mapping[str, Iterable[str]], of_folder: Iterable[str]) -> list[str]:
    """A line for each note; one that several parts have is told once, with their names."""
    said: dict[str, list[str]] = {}
    for name, notes in of_parts.items():
        for note in notes:
            said.setdefault(note, []).append(name)
    return [
        *(f"note: {', '.join(names)}: {note}" for note, names in said.items()),
        *(f"note: {note}" for note in of_folder),
    ]


def check_table(found: FolderCheck) -> Group:
    """A line for each pair of models, and which models have no partner."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    whole = [part.found for part in found.parts if isinstance(part.found, Check)]
    for column in ("part", "size", "of A", *(("error", "speed", "compared on") if whole else ())):
        table.add_column(column, overflow="fold", justify="right" if column in ("of A", "error") else "left")
    for part in found.parts:
        sizes = _sizes(part.bytes_before, part.bytes_after)
        if isinstance(part.found, Check):
            inputs = part.found.inputs if part.found.proves else "made-up inputs"
            table.add_row(part.name, *sizes, *_figures(part.found), inputs)
        else:
            table.add_row(part.name, *sizes)
    lines = [MADE_UP] if any(not check.proves for check in whole) else []
    lines += [
        f"only in {folder}: {', '.join(names)}"
        for folder, names in ((found.a, found.only_a), (found.b, found.only_b))
        if names
    ]
    lines += _all_notes({part.name: part.found.notes for part in found.parts}, found.notes)
    return Group(table, Text(), *(Text(one_line(line)) for line in lines))


def contents_table(folder: Folder) -> Group:
    """The parts of a folder, and what else is in it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("part", "model", "size", "quantized"):
        table.add_column(column, overflow="fold")
    for part in folder.parts:
        size = sum((folder.path / file).stat().st_size for file in (part.file, *part.data))
        table.add_row(part.name, part.file.as_posix(), _bytes(size), part.quantized or "no")
    lines = [f"{folder.path}: {folder.kind} folder, {amount(len(folder.parts), 'part')}"]
    rest = [f"others: {_listed(folder.others)}"] if folder.others else []
    rest += [f"not for the result: {file.as_posix()} ({why})" for file, why in folder.left_out.items()]
    return Group(
        *(Text(one_line(line)) for line in lines), Text(), table, Text(), *(Text(one_line(line)) for line in rest)
    )


def _becomes(part: PartResult) -> str:
    """The forms of most of its weights."""
    if part.result is None:
        return "as it was"
    weights: Counter[str] = Counter()
    for choice in part.result.plan:
        if choice.elements or choice.method is not Method.KEEP:
            weights[choice.label] += choice.elements
    return ", ".join(label for label, _ in weights.most_common(3))


def _sizes(before: int, after: int) -> tuple[str, str]:
    return f"{_bytes(before)} → {_bytes(after)}", f"{after / max(1, before):.2f}"


def _proof(part: PartResult) -> tuple[str, str]:
    return _figures(None if part.result is None else part.result.check)


def _figures(check: Check | None) -> tuple[str, str]:
    """(error, speed)."""
    if check is None:
        return "", ""
    error = (
        "not measured" if math.isnan(check.sqnr) else "identical" if check.sqnr >= MAX_DB else f"{check.sqnr:.1f} dB"
    )
    return error, f"{1 / check.latency_ratio:.2f}×" if check.float_ms else ""


def _notes(part: PartResult) -> tuple[str, ...]:
    return () if part.result is None else part.result.further_notes


def _listed(files: Sequence[Path]) -> str:
    return listed([file.as_posix() for file in files], LISTED)

"""A comparison layer by layer, as a person is shown it."""

from __future__ import annotations

from collections import Counter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from onnxq.checking.layers.result import ByLayer, LayerError, Role
from onnxq.errors import amount, one_line
from onnxq.quality import MAX_DB

#: Layers that are named below the table.
_NAMED = 5
#: Rows of the table, unless all are asked for: what a person reads.
_ROWS = 40


def layers_table(found: ByLayer, *, is_whole: bool = False) -> Group:
    """A line a layer, in the order of execution, and what follows from them; of many layers those that matter."""
    shown = found.layers if is_whole else found.shown(_ROWS)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("operator", "value", "in B", "SQNR", "its own", "cosine", "max error", "error"):
        is_number = column in ("SQNR", "its own", "cosine", "max error")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for layer in shown:
        table.add_row(*_row(layer))
    lines = [*_left_out(found, shown), *_sentences(found)]
    return Group(table, Text(), *(Text(one_line(line)) for line in lines))


def _row(layer: LayerError) -> tuple[str | Text, ...]:
    op = layer.op if layer.op == layer.op_b else f"{layer.op} → {layer.op_b}"
    there = "" if layer.b == layer.a else layer.b
    if layer.pairing != "name":
        there += f" (by {layer.pairing})"
    if layer.axes:
        there += f" axes {','.join(map(str, layer.axes))}"
    if layer.is_scaled:
        there += " scaled"
    own = "" if layer.local_sqnr is None else _decibel(layer.local_sqnr)
    role = Text(layer.role or "", style="bold yellow" if layer.role == "adds" else "")
    return op, layer.a, there, _decibel(layer.sqnr), own, f"{layer.cosine:.5f}", f"{layer.max_error:.3g}", role


def _left_out(found: ByLayer, shown: tuple[LayerError, ...]) -> list[str]:
    """How many layers the table does not have, by what they do."""
    names = {layer.a for layer in shown}
    rest = Counter(layer.role for layer in found.layers if layer.a not in names)
    words: dict[Role | None, str] = {
        "adds": "add less",
        "passes": "pass error on",
        "same": "are the same",
        None: "could not be run alone, or differ by next to nothing",
    }
    told = ", ".join(f"{rest[role]} {word}" for role, word in words.items() if rest[role])
    return [f"not shown: {amount(rest.total(), 'layer')}, of which {told}; --all shows them"] if rest else []


def _sentences(found: ByLayer) -> list[str]:
    lines = [f"{amount(len(found.layers), 'layer')} compared on {found.inputs}"]
    if not found.proves and found.layers:
        lines.append("made-up inputs show where a model is weak, not how accurate it is on your data: give --data")
    if found.first_apart is not None:
        first = found.first_apart
        lines.append(
            "SQNR: all error up to there, its own: what this layer adds; more dB are better, from 120 on the same"
        )
        lines.append(f"they first differ at '{first.a}' ({first.op}): {_decibel(first.sqnr)}")
    elif found.worst is not None:
        is_same = found.worst.sqnr >= MAX_DB
        near = f"nearly the same throughout, '{found.worst.a}' the least: {_decibel(found.worst.sqnr)}"
        lines.append("the same throughout" if is_same else near)
    if found.adding:
        named = ", ".join(f"'{layer.a}' ({_decibel(layer.local_sqnr or 0)})" for layer in found.adding[:_NAMED])
        more = len(found.adding) - _NAMED
        lines.append(f"layers that add the most error: {named}{f' and {more} that add less' if more > 0 else ''}")
    scaled = sum(layer.is_scaled for layer in found.layers)
    if scaled:
        lines.append(
            f"scaled: channels of {scaled} values, which their readers take back; they were scaled back to be compared"
        )
    for which, other, names in (("A", "B", found.unpaired_a), ("B", "A", found.unpaired_b)):
        if names:
            shown, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
            rest = f" and {more} more" if more > 0 else ""
            lines.append(f"only in {which}, as {other} has them fused or rewritten: {shown}{rest}")
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _decibel(x: float) -> str:
    return "same" if x >= MAX_DB else f"{x:.1f} dB"

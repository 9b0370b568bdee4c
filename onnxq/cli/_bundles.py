"""What a person is shown of a bundle."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from onnxq.bundles.export import Exported
from onnxq.bundles.verify import Verified
from onnxq.errors import amount, one_line
from onnxq.report.words import decibel, milliseconds, nbytes
from onnxq.runtime.machine import threads_in_words


def exported_table(done: Exported) -> Group:
    """What is in it, and what was measured."""
    table, manifest = _table(), done.manifest
    table.add_row("files", str(len(manifest.files)), one_line(", ".join(manifest.files)))
    table.add_row("size", nbytes(done.bytes), f"for {manifest.platform}" if manifest.library else "")
    if manifest.measured is not None:
        found = manifest.measured
        whose = "the data" if found.proves else found.on
        table.add_row("samples", f"{found.samples} stored", one_line(f"of {whose}"))
        if found.sqnr is not None:
            table.add_row("error", decibel(found.sqnr), "SQNR against the float model")
        table.add_row("speed", milliseconds(found.milliseconds), threads_in_words(found.threads))
        table.add_row("kernels", _kernels(found.kernels), "")
    return _with_notes(table, done.notes)


def verified_table(done: Verified) -> Group:
    """What was found here, beside what was found there."""
    table, there = _table(), done.there
    table.add_row("files", str(len(done.manifest.files)), f"{nbytes(done.bytes)}, as they were exported")
    if there is not None and done.agrees is not None:
        table.add_row("", "here", "there")
        table.add_row("machine", one_line(done.machine.cpu), one_line(there.machine.cpu))
        table.add_row("agrees", decibel(done.agrees), f"on {amount(there.samples, 'stored sample')}")
        if done.sqnr is not None and there.sqnr is not None:
            before = f"{decibel(there.sqnr)} against the float model"
            table.add_row("error", decibel(done.sqnr), before)
        times = milliseconds(done.milliseconds), milliseconds(there.milliseconds)
        table.add_row("speed", times[0], f"{times[1]}, {threads_in_words(there.threads)}")
        table.add_row("kernels", _kernels(done.kernels), _kernels(there.kernels))
    return _with_notes(table, done.notes)


def _table() -> Table:
    return Table(box=None, pad_edge=False, show_header=False)


def _with_notes(table: Table, notes: Sequence[str]) -> Group:
    return Group(table, *(Text(one_line(f"note: {note}")) for note in notes))


def _kernels(kernels: dict[str, int]) -> str:
    return one_line(", ".join(f"{count} {op}" for op, count in kernels.items())) or "none on integers"

"""A benchmark as a picture: what each form costs in bits and what it keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxq.analysis.benchmarks.results import Benchmark, Degradation
from onnxq.errors import BadOutput, MissingRuntime, NothingToDo, first_line, one_line
from onnxq.files import staging
from onnxq.runtime import supervisor

SUFFIXES = (".png", ".svg", ".pdf")
#: Tables that have a colour of their own; more are left out of the legend's reach.
MOST_TABLES = 10
#: Of a name in the legend.
MOST_LETTERS = 40


def save_plot(benchmark: Benchmark, path: str | Path, *, replace: bool = False) -> None:
    """Draw SQNR (dB) over bits a weight, a colour for each kind of weights, a labelled point for each form.

    Args:
        benchmark: of arrays, made-up weights or a model.
        path: .png, .svg or .pdf.
        replace: a file that is there.

    Raises:
        BadOutput: another suffix, or it cannot be written.
        MissingRuntime: matplotlib is not installed, or cannot be loaded.
        NothingToDo: there are no figures, or those of more than `MOST_TABLES` kinds of weights.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise BadOutput(f"a plot is a file that ends in {', '.join(SUFFIXES)}, not {path.name}")
    tables = {name: [row for row in rows if row.stats] for name, rows in benchmark.tables.items()}
    tables = {name: rows for name, rows in tables.items() if rows}
    if not 0 < len(tables) <= MOST_TABLES:
        raise NothingToDo(f"a plot shows 1 to {MOST_TABLES} kinds of weights, and these are {len(tables)}")
    matplotlib = _matplotlib()
    if supervisor.is_at_work():  # in a program of the user's, its settings are those of all its threads
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "onnxq"  # names of clips are random without
    with staging.whole(path, replace=replace) as staged:
        # Without the date, so that equal figures are equal files.
        date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        _drawn(matplotlib, tables).savefig(staged, format=path.suffix[1:], dpi=150, metadata=date)


def _drawn(matplotlib: Any, tables: Mapping[str, Sequence[Degradation]]) -> Any:
    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="bits a weight", ylabel="SQNR of the weights (dB)")
    labelled = set()
    for name, rows in tables.items():
        points = sorted((row.stats.bits_per_weight, row.stats.sqnr, row.form.label) for row in rows if row.stats)
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o", markersize=4, label=_said(name))
        for x, y, label in points:
            if label not in labelled:
                labelled.add(label)
                axes.annotate(label, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
    axes.grid(visible=True, linewidth=0.3)
    legend = figure.legend(loc="outside upper center", ncols=min(4, len(tables)), fontsize=7, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a name is one
    return figure


def _said(name: str) -> str:
    """As a legend has room for it; matplotlib leaves those out that begin with an underscore."""
    name = one_line(name)
    name = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
    return f" {name}" if name.startswith("_") else name


def _matplotlib() -> Any:
    """
    Raises:
        MissingRuntime: it is not installed, or cannot be loaded with the settings that it finds.
    """
    # It reads its settings where a command is at work, too, and these may name programs to run.
    elsewhere = contextlib.chdir("/") if supervisor.is_at_work() else contextlib.nullcontext()
    try:
        with elsewhere:
            import matplotlib
            import matplotlib.figure
    except ImportError:
        raise MissingRuntime("drawing a plot needs matplotlib: pip install 'onnxq[plot]'") from None
    except Exception as error:  # of its settings: a file of its own, MPLBACKEND
        raise MissingRuntime(f"matplotlib cannot be loaded: {first_line(error)}") from None
    return matplotlib

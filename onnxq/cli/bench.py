"""`onnxq bench`: how fast models are, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from onnxq.benching.bench import SECONDS
from onnxq.benching.bench import bench as measure
from onnxq.benching.models import SAMPLES
from onnxq.benching.result import BenchReport, Median
from onnxq.benching.throughput import BATCHES
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of, sampling_of
from onnxq.cli._options import FORCE_OPTION, MODEL, THREADS_TYPE, data_options
from onnxq.cli._types import Real
from onnxq.errors import one_line
from onnxq.report.words import decibel, milliseconds, nbytes
from onnxq.runtime import native
from onnxq.runtime.session import THREADS

#: Operators that are shown of each model.
_OPERATORS = 6


@click.command(short_help="Time models side by side: latency, throughput, memory, tokens a second.")
@click.argument("models", type=MODEL, nargs=-1, required=True)
@data_options(limit=SAMPLES)
@click.option(
    "--threads",
    type=THREADS_TYPE,
    multiple=True,
    help=f"Threads of an operator; 0: onnxruntime's default. Repeatable; latency is that of the first.  [default: "
    f"{THREADS}, and all cores for throughput]",
)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(1),
    multiple=True,
    help=f"Samples in one run, for throughput. Repeatable.  [default: {', '.join(map(str, BATCHES))}]",
)
@click.option(
    "--seconds",
    type=Real(0, 3600, min_open=True),
    default=SECONDS,
    show_default=True,
    help="For which each model is run.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Measure each model on a worker of a Dask cluster, as of 'quantize': tcp://host:8786, local:2, …",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--report", type=MODEL, help="Write everything as JSON to this file.")
@FORCE_OPTION
def bench(models: tuple[Path, ...], **options: Any) -> None:
    """Time MODELS on the same inputs, in turns, and compare the answers of all with those of the first.

    Medians stand with the interval that holds them with a probability of 95 %. Opening, first run and memory are those
    of a process of its own. Models with a cache are run token by token, their presents fed back into their pasts.
    With --cluster each model has a worker of its own, and only times of one machine are compared.

    \b
    onnxq bench model.onnx model.w8a8.onnx
    onnxq bench a.onnx b.onnx --data samples.npz --batch 1 --batch 32 --threads 1 --threads 4
    """
    refuse_folders(*models)
    guard = guard_of(options)
    # How many cores a worker has, onnxruntime finds there.
    cores = native.cores() if options["cluster"] is None else 0
    threads = options["threads"] or tuple(dict.fromkeys((THREADS, cores)))
    with Bars(console(stderr=True)) as bars:
        found = measure(
            models,
            sampling_of(options),
            threads=threads,
            batches=options["batches"] or BATCHES,
            seconds=options["seconds"],
            cluster=options["cluster"],
            progress=bars,
        )
    if options["report"]:
        guard.write_text(options["report"], found.to_json())
    if options["as_json"]:
        click.echo(found.to_json())
        return
    _show(found)


def _show(found: BenchReport) -> None:
    out = console()
    out.print(f"on {found.inputs}; {found.machine}\n")
    for table in (_times(found), _costs(found), _throughput(found), _generation(found), _operators(found)):
        if table.row_count:
            out.print(table)
            out.print()
    for note in found.notes:
        out.print(Text(one_line(f"note: {note}")))


def _table(*columns: str) -> Table:
    """Figures stay on their line, whatever that leaves of names."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_text = column in ("model", "operators", "machine")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


def _times(found: BenchReport) -> Table:
    table = _table("model", "median", "95 %", "of the first", "agrees")
    for row in found.models:
        table.add_row(
            Path(row.model).name,
            milliseconds(row.ms.median),
            " … ".join(milliseconds(end).removesuffix(" ms") for end in (row.ms.low, row.ms.high)),
            "" if row.ratio is None else f"{row.ratio.median:.2f} {_interval(row.ratio)}",
            "" if row.sqnr is None else decibel(row.sqnr),
        )
    return table


def _costs(found: BenchReport) -> Table:
    """What a model takes beside the time of its runs."""
    is_apart = len({row.machine for row in found.models}) > 1
    table = _table("model", "opens in", "first run", "memory", "file", *(["machine"] if is_apart else []))
    for row in found.models:
        table.add_row(
            Path(row.model).name,
            "–" if row.load_ms is None else milliseconds(row.load_ms),
            "–" if row.first_ms is None else milliseconds(row.first_ms),
            "–" if row.peak_bytes is None else nbytes(row.peak_bytes),
            nbytes(row.nbytes),
            *([row.machine] if is_apart else []),
        )
    return table


def _interval(ratio: Median) -> str:
    return f"({ratio.low:.2f} … {ratio.high:.2f})"


def _rate(a_second: float) -> str:
    """Four digits, without an exponent."""
    return f"{a_second:.0f}" if a_second >= 1000 else f"{a_second:.4g}"


def _throughput(found: BenchReport) -> Table:
    """A line for each model, those of one batch and number of threads below each other."""
    table = _table("batch", "threads", "model", "samples/s")
    rows = [{(each.batch, each.threads): each.samples_per_second for each in m.throughput} for m in found.models]
    for batch, threads in dict.fromkeys(key for row in rows for key in row):
        first = str(batch), str(threads or "all")
        for model, row in zip(found.models, rows, strict=True):
            rate = _rate(row[batch, threads]) if (batch, threads) in row else "–"
            table.add_row(*first, Path(model.model).name, rate)
            first = "", ""
    return table


def _generation(found: BenchReport) -> Table:
    table = _table("model", "tokens/s", "a token", "prompt")
    for row in found.models:
        told = row.generation
        if told is not None:
            prompt = f"{milliseconds(told.prompt_ms)} for {told.prompt} tokens"
            step = f"{milliseconds(told.step_ms.median)} {_interval(told.step_ms)}"
            table.add_row(Path(row.model).name, _rate(told.tokens_per_second), step, prompt)
    return table


def _operators(found: BenchReport) -> Table:
    table = _table("model", "operators")
    for row in found.models:
        shown = [f"{each.count} {each.op} {each.share:.0%}" for each in row.operators[:_OPERATORS]]
        table.add_row(Path(row.model).name, ", ".join(shown))
    return table

"""`onnxq analyze`: the error of every weight in every format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from onnxq.algorithms import DATA_FREE
from onnxq.analysis import ModelAnalysis, analyze_model, report
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import sampling_of
from onnxq.cli._options import DATA_OPTIONS, FORM_OPTIONS, MODEL
from onnxq.cli._report import HTML_OPTIONS, command_line, guard_for_html, write_html
from onnxq.errors import Exit, one_line


@click.command(short_help="Show which layers each format harms.")
@click.argument("model", type=MODEL)
@FORM_OPTIONS
@DATA_OPTIONS
@click.option(
    "--algorithm",
    type=click.Choice(list(DATA_FREE)),
    default="rtn",
    show_default=True,
    help="How the codes are chosen: rtn is the format's own rounding.",
)
@click.option("--top", type=click.IntRange(1), help="Show only so many layers.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@HTML_OPTIONS
def analyze(model: Path, **options: Any) -> None:
    """Show the signal-to-noise ratio of each weight of MODEL in each format, the most harmful layer first.

    With --data the model is run too, with one weight quantized at a time.
    """
    refuse_folders(model)
    guard = guard_for_html(options)
    with Bars(console(stderr=True)) as bars:
        found = analyze_model(
            model,
            options["weights"],
            options["granularity"],
            data=sampling_of(options),
            algorithm=options["algorithm"],
            progress=bars,
        )
    write_html(guard, options["html"], lambda: _report(model, found))
    if options["as_json"]:
        click.echo(found.to_json())
    else:
        _print(found, options["top"])
    if not found.is_known:
        sys.exit(Exit.UNCHECKED)


def _print(found: ModelAnalysis, top: int | None) -> None:
    out = console()
    for table in report.analysis_tables(found, top, out.width):
        out.print(table)
        out.print()
    for note in report.notes(found):
        out.print(one_line(note), soft_wrap=True)


def _report(model: Path, found: ModelAnalysis) -> Any:
    from onnxq.report import gather

    return gather.of_analysis(found, gather.Subject(model, commands=(command_line(),)))

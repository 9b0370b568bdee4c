"""`onnxq report`: a model or a plan as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq.checking.compare import LIMIT
from onnxq.cli._console import Bars, console, say
from onnxq.cli._folders import keep, refuse_folders
from onnxq.cli._given import guard_of, sampling_of
from onnxq.cli._options import FORCE_OPTION, MODEL, THREADS_OPTION, data_options
from onnxq.cli._report import announced, command_line, write_html
from onnxq.job import Environment


@click.command(short_help="Show a model, a plan or a result as a page.")
@click.argument("model", type=MODEL)
@click.option("--output", "-o", type=MODEL, help="Where to write the page.  [default: MODEL's name with .html]")
@click.option("--json", "json_file", type=MODEL, help="Write the same as JSON to this file (docs/report.schema.json).")
@click.option("--against", type=MODEL, help="The float model that MODEL was made of: errors and times beside its own.")
@data_options(limit=LIMIT)
@THREADS_OPTION
@FORCE_OPTION
def report(model: Path, **options: Any) -> None:
    """Make a page of MODEL: what its nodes became and why, errors, ranges, times, and how it was made.

    MODEL is a quantized model, whoever made it, a folder of them, a plan of 'onnxq plan -o', or a report as JSON. The
    page is one file, which needs no network.
    """
    from onnxq.report import folders
    from onnxq.report.gather import Subject, read_report

    if options["against"] is not None and options["against"].is_dir() != model.is_dir():
        refuse_folders(model, options["against"])
    guard = guard_of(options)
    keep(guard, *(each for each in (model, options["against"]) if each is not None and each.is_dir()))
    page = options["output"] or (
        None if options["json_file"] else Path(f"{model.resolve().name if model.is_dir() else model.stem}.html")
    )
    announced(guard, [page] if page else [], "-o")
    announced(guard, [options["json_file"]] if options["json_file"] else [], "--json")
    with Bars(console(stderr=True)) as bars:
        environment = Environment(options["threads"], bars, guard)
        subject = Subject(model, options["against"], sampling_of(options), environment, (command_line(),))
        found = (
            folders.of_models(model, subject.in_float, subject.sampling, environment, subject.commands)
            if model.is_dir()
            else read_report(subject)
        )
    written = [path for path in (page, options["json_file"]) if path]
    write_html(guard, written, lambda: found)
    for path in written:
        say(f"{path} written")

"""`onnxq check`: compare two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from onnxq.checking.compare import LIMIT, compare
from onnxq.cli import _tables
from onnxq.cli._console import console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._options import METRIC_OPTIONS, MODEL, THREADS_OPTION, data_options, sampling_of


@click.command(short_help="Compare two models: error, kernels, speed.")
@click.argument("a", type=MODEL)
@click.argument("b", type=MODEL)
@data_options(limit=LIMIT)
@METRIC_OPTIONS
@THREADS_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(a: Path, b: Path, **options: Any) -> None:
    """Compare model B with model A: outputs with onnxruntime's optimizer on and off, kernels, time in turns."""
    refuse_folders(a, b)
    found = compare(
        a,
        b,
        sampling_of(options),
        threads=options["threads"],
        metric=options["metric"],
        logits=options["logits"],
    )
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        console().print(_tables.check_table(found))

"""`onnxq check`: compare two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from onnxq import pipeline, tables
from onnxq.check import check_models
from onnxq.cli._console import console
from onnxq.cli._options import DATA_OPTIONS, MODEL, THREADS_OPTION, preprocessing_of
from onnxq.data import inputs_of, open_data
from onnxq.load import load_model
from onnxq.runtime import Session
from onnxq.synthesize import synthesize


@click.command(short_help="Compare two models: error, kernels, speed.")
@click.argument("a", type=MODEL)
@click.argument("b", type=MODEL)
@DATA_OPTIONS
@THREADS_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(a: Path, b: Path, **options: Any) -> None:
    """Compare model B with model A: outputs with onnxruntime's optimizer on and off, kernels, time in turns."""
    model = load_model(a)
    load_model(b)
    in_float = Session(a, threads=options["threads"])
    if options["data"]:
        data = open_data(options["data"], inputs_of(model), preprocessing_of(options))
        feeds = list(data.limited(min(16, options["limit"])))
        what = f"{len(feeds)} samples"
    else:
        feeds = synthesize(model, in_float, pipeline.SYNTHETIC)
        what = f"{len(feeds)} made-up inputs"
    found = check_models(in_float, b, feeds, what, threads=options["threads"])
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        console().print(tables.check_table(found))

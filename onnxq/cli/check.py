"""`onnxq check`: compare two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from onnxq.checking.models import check_models
from onnxq.cli import _tables
from onnxq.cli._console import console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._options import MODEL, THREADS_OPTION, data_options, sampling_of
from onnxq.errors import BadModel
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import load_model
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.runtime.session import Session
from onnxq.samples.source import inputs_of
from onnxq.samples.trials import Trials


@click.command(short_help="Compare two models: error, kernels, speed.")
@click.argument("a", type=MODEL)
@click.argument("b", type=MODEL)
@data_options(limit=16)
@THREADS_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(a: Path, b: Path, **options: Any) -> None:
    """Compare model B with model A: outputs with onnxruntime's optimizer on and off, kernels, time in turns."""
    refuse_folders(a, b)
    model = load_model(a)
    names, others = ([i.name for i in inputs_of(each)] for each in (model, load_model(b)))
    if set(names) != set(others):
        words = " and ".join(f"{path} takes {', '.join(found)}" for path, found in ((a, names), (b, others)))
        raise BadModel(f"the models cannot be compared: {words}")
    in_float = Session(a, threads=options["threads"])
    if options["data"]:
        feeds = list(sampling_of(options).open(model, a) or ())
        trials = Trials.given(feeds, f"{len(feeds)} samples")
    else:
        UniqueNames()(model)
        trials = make_up(model, scout(model))
    found = check_models(in_float, b, trials, threads=options["threads"])
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        console().print(_tables.check_table(found))

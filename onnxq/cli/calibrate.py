"""`onnxq calibrate`: find activation ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq import pipeline, save
from onnxq.cli._console import Bars, console
from onnxq.cli._options import CALIBRATION_OPTION, DATA_OPTIONS, MODEL, PLAN_OPTIONS, preprocessing_of, recipe_of
from onnxq.errors import BadData, NothingToDo
from onnxq.ranges import NO_RANGES


@click.command(short_help="Find activation ranges on sample data.")
@click.argument("model", type=MODEL)
@click.option("--output", "-o", type=MODEL, required=True, help="Where to write the ranges.")
@PLAN_OPTIONS
@DATA_OPTIONS
@CALIBRATION_OPTION
def calibrate(model: Path, **options: Any) -> None:
    """Find the activation ranges of MODEL on --data, for 'quantize --ranges'."""
    if not options["data"]:
        raise BadData("ranges are found by running the model on samples: give --data")
    with Bars(console(stderr=True)) as bars:
        job = pipeline.open_job(
            model,
            recipe_of(options),
            options["target"],
            options["data"],
            preprocessing_of(options),
            options["limit"],
            progress=bars,
        )
        found = pipeline.find_ranges(job)
    if found is NO_RANGES:
        raise NothingToDo(f"{model}: {job.plan.scheme} needs no ranges of activations")
    save.write_text(options["output"], found.to_json(), [model])
    click.echo(f"{options['output']}: {len(found.values)} ranges by {found.method}, {len(found.problems)} without")

"""`onnxq profile`: measure, on the machine that will run a model, the times that decide what becomes of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from onnxq import pipeline, targets
from onnxq.cli._console import Bars, console, say
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of, sampling_of
from onnxq.cli._options import DATA_OPTIONS, FORCE_OPTION, MODEL, THREADS_OPTION
from onnxq.errors import BadModel, NothingToDo, amount
from onnxq.files import staging
from onnxq.job import Environment, open_job
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.recipe import Recipe
from onnxq.runtime.profile import MachineProfile, new_profile, opened
from onnxq.samples.sampling import Sampling
from onnxq.schemes import SCHEMES, SPEED_SCHEMES

#: Copies of one made-up sample that stand for data: as many as leave some to be held back.
COPIES = 8


@click.command(short_help="Measure the times that decide, on the machine that will run the model.")
@click.argument("model", type=MODEL)
@click.option("--output", "-o", type=MODEL, default="device.json", show_default=True, help="Where to write them.")
@click.option(
    "--scheme",
    "-s",
    "schemes",
    type=click.Choice(list(SCHEMES)),
    multiple=True,
    help=f"What the times are for. Repeatable.  [default: where times decide: {', '.join(SPEED_SCHEMES)}]",
)
@click.option(
    "--target", "-t", type=click.Choice(targets.names()), default="ort-cpu", show_default=True, help="What it runs in."
)
@click.option("--add-to", type=MODEL, help="Begin with what this profile of the same machine holds.")
@DATA_OPTIONS
@THREADS_OPTION
@FORCE_OPTION
def profile(model: Path, **options: Any) -> None:
    """Measure the kernels of MODEL, in float and in the forms they may take, on this machine.

    'onnxq quantize --profile' decides by these times wherever it runs. Give the data, the schemes and the target that
    it will be given: then it decides what it would decide here.
    """
    refuse_folders(model)
    guard = guard_of(options)
    guard.writes(options["output"])
    threads = options["threads"]
    found = opened(options["add_to"], threads) if options["add_to"] else new_profile(threads)
    sampling = sampling_of(options)
    with Bars(console(stderr=True)) as bars, staging.scratch() as folder:
        environment = Environment(threads, bars)
        for scheme in options["schemes"] or _schemes(sampling):
            _measure(model, scheme, options["target"], sampling, environment, found, folder)
    guard.write_text(options["output"], found.to_json())
    say(f"{options['output']}: {amount(len(found.kernels), 'time')} of kernels on {found}")


def _schemes(sampling: Sampling) -> list[str]:
    """Those in which times decide; with data `auto` is one of the others."""
    return [word for word in SPEED_SCHEMES if word != "auto" or sampling.source is None]


def _measure(
    model: Path,
    scheme: str,
    target: str,
    sampling: Sampling,
    environment: Environment,
    found: MachineProfile,
    folder: Path,
) -> None:
    """Quantize the model, and keep nothing of it but the times."""
    source = sampling.source
    if source is None and SCHEMES[scheme].without_data:
        source = _made_up(model)
    with contextlib.suppress(NothingToDo):
        pipeline.quantize(
            model,
            folder / "model.onnx",
            Recipe(scheme),
            target=target,
            data=source,
            preprocessing=sampling.preprocessing,
            limit=sampling.limit,
            seed=sampling.seed,
            profile=found,
            force=True,
            threads=environment.threads,
            progress=environment.progress,
        )


def _made_up(model: Path) -> list[Any]:
    """Samples of one shape: how long kernels take does not depend on what they hold.

    Raises:
        BadModel: it takes none that could be thought of.
    """
    prepared = open_job(model, "w8a8-dynamic").model
    trials = make_up(prepared, scout(prepared))
    if not trials.feeds:
        raise BadModel(f"no inputs could be made up that '{model}' takes: give --data")
    return [dict(trials.feeds[0]) for _ in range(COPIES)]

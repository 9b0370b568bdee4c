"""`onnxq export`: a model with all that another machine needs to run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from onnxq import targets
from onnxq.bundles.export import export as make
from onnxq.bundles.stored import MOST
from onnxq.cli import _bundles
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of, sampling_of, tell_moot
from onnxq.cli._options import FORCE_OPTION, MODEL, THREADS_OPTION, data_options
from onnxq.errors import Exit
from onnxq.job import Environment

#: Options of the samples that a model is run on.
_OF_SAMPLES = {"data", "limit", "seed", "preprocess", "tokenizer", "lengths", "reference"}


@click.command(short_help="Put a model, its library and what was measured into a folder.")
@click.argument("model", type=MODEL)
@click.option("--output", "-o", type=MODEL, help="The folder to write.  [default: MODEL's name with .bundle]")
@click.option(
    "--target",
    "-t",
    type=click.Choice(targets.names()),
    help="Refuse a model with operators that this target lacks.  [default: the one that the model was made for]",
)
@click.option("--reference", type=MODEL, help="The float model, to measure the error against it, here and there.")
@data_options(limit=MOST)
@click.option("--no-check", is_flag=True, help="Do not run the model: nothing is measured.")
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def export(model: Path, **options: Any) -> None:
    """Write a folder with MODEL as it is, quantized or not, for another machine.

    In it are the compiled library if MODEL has operators of onnxq's own, a few samples with what MODEL made of them
    here, lines that load it in Python, C++, C#, Java and JavaScript, checksums, and a manifest of what was measured.
    There 'onnxq verify' measures it again, and so does run.py without onnxq.
    """
    refuse_folders(model)
    if options["no_check"]:
        tell_moot(_OF_SAMPLES, "nothing is run, so no samples are kept")
    with Bars(console(stderr=True)) as bars:
        done = make(
            model,
            options["output"],
            target=options["target"],
            reference=options["reference"],
            data=sampling_of(options),
            check=not options["no_check"],
            force=options["force"],
            environment=Environment(options["threads"], bars, guard_of(options)),
        )
    if options["as_json"]:
        click.echo(json.dumps(msgspec.to_builtins(done.manifest), indent=1))
    else:
        out = console()
        out.print(f"{done.output}: {done.manifest.model} for {done.manifest.target}\n", style="bold")
        out.print(_bundles.exported_table(done))
    if done.manifest.measured is None and not options["no_check"]:
        sys.exit(Exit.UNCHECKED)

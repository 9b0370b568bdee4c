"""`onnxq verify`: a bundle on the machine that will run it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from onnxq.bundles.verify import verify as run
from onnxq.cli import _bundles
from onnxq.cli._console import Bars, console
from onnxq.cli._given import guard_of
from onnxq.cli._options import MODEL, THREADS_TYPE
from onnxq.errors import Exit
from onnxq.job import Environment


@click.command(short_help="Check a bundle of 'onnxq export' on this machine.")
@click.argument("bundle", type=MODEL)
@click.option(
    "--load-library",
    is_flag=True,
    help="Run the bundle's own library, which is code: only if you trust its maker.  [default: only if it is the same "
    "as this installation's]",
)
@click.option("--threads", type=THREADS_TYPE, help="Threads for timing.  [default: as many as it was measured on]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(bundle: Path, **options: Any) -> None:
    """Check that every file of BUNDLE is what was exported, run its samples here, and compare with what was measured
    where it was made: outputs, error against the float model, time, kernels."""
    with Bars(console(stderr=True)) as bars:
        environment = Environment(progress=bars, guard=guard_of(options))
        done = run(bundle, load_library=options["load_library"], threads=options["threads"], environment=environment)
    if options["as_json"]:
        table = {field.name: getattr(done, field.name) for field in dataclasses.fields(done)}
        click.echo(json.dumps(msgspec.to_builtins(table), indent=1))
    else:
        console().print(_bundles.verified_table(done))
    if done.agrees is None:
        sys.exit(Exit.UNCHECKED)

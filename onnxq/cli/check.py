"""`onnxq check`: compare two models, or hold one against the rules of a runtime."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from onnxq.checking.compare import LIMIT, compare
from onnxq.checking.rules import check_rules
from onnxq.cli import _tables
from onnxq.cli._console import console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._options import METRIC_OPTIONS, MODEL, THREADS_OPTION, data_options, sampling_of
from onnxq.errors import CheckFailed
from onnxq.targets import rules


@click.command(short_help="Compare two models: error, kernels, speed.")
@click.argument("a", type=MODEL)
@click.argument("b", type=MODEL, required=False)
@click.option(
    "--target",
    "-t",
    type=click.Choice(rules.names()),
    help="Instead of comparing, list where model A breaks the documented rules of this runtime, which need not be "
    "installed; exit code 1 if it would refuse the model.",
)
@data_options(limit=LIMIT)
@METRIC_OPTIONS
@THREADS_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(a: Path, b: Path | None, **options: Any) -> None:
    """Compare model B with model A: outputs with onnxruntime's optimizer on and off, kernels, time in turns."""
    target = options["target"]
    if target is not None:
        if b is not None:
            raise click.UsageError("--target looks at one model: leave out the second one.")
        _hold_against_rules(a, target, as_json=options["as_json"])
        return
    if b is None:
        raise click.UsageError("give a second model to compare with, or --target to look at this one.")
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


def _hold_against_rules(model: Path, target: str, *, as_json: bool) -> None:
    refuse_folders(model)
    found = check_rules(model, target)
    if as_json:
        click.echo(json.dumps({"target": target, "findings": list(map(dataclasses.asdict, found))}, indent=1))
    else:
        console().print(_tables.findings_table(found, target))
    if any(finding.refuses for finding in found):
        sys.exit(CheckFailed.exit_code)

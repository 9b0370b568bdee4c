"""`onnxq check`: compare two models, or hold one against the rules of a runtime."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from onnxq.checking.compare import LIMIT, compare
from onnxq.checking.layers.by_layer import by_layer
from onnxq.checking.layers.floor import require_floors, require_output_floor
from onnxq.checking.layers.result import ByLayer
from onnxq.checking.models import Check
from onnxq.checking.rules import check_rules
from onnxq.cli import _folders, _tables, _written
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import sampling_of
from onnxq.cli._layers import layers_table
from onnxq.cli._options import METRIC_OPTIONS, MODEL, THREADS_OPTION, data_options
from onnxq.cli._report import HTML_OPTIONS, command_line, guard_for_html, write_html
from onnxq.cli._types import Floors, Size
from onnxq.errors import BadRecipe, CheckFailed, Exit
from onnxq.files.guard import Guard
from onnxq.job import Environment
from onnxq.samples.sampling import Sampling
from onnxq.targets import rules


@click.command(short_help="Compare two models: error, kernels, speed; or layer by layer.")
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
@click.option("--by-layer", is_flag=True, help="Compare the values inside: where error comes in, what passes it on.")
@click.option("--all", "is_whole", is_flag=True, help="Of --by-layer: show every layer, not those alone that matter.")
@click.option(
    "--max-memory",
    type=Size(),
    help="Of --by-layer: what values may take at a time, e.g. 200MB; where they need more there are several passes "
    "over the samples.  [default: 512MB]",
)
@click.option(
    "--fail-below",
    type=Floors(),
    help="End with exit status 1 if the outputs, or any layer with --by-layer, are below: 'sqnr=30', of layers "
    "'local_sqnr=35' and 'cosine=0.99' too, several with commas.",
)
@THREADS_OPTION
@HTML_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(a: Path, b: Path | None, **options: Any) -> None:
    """Compare model B with model A: outputs with onnxruntime's optimizer on and off, kernels, time in turns. Two
    folders of models are compared part by part.

    With --by-layer the values inside, which are paired by name and by what computes them: SQNR, cosine and largest
    error of each, once with all error before it and once with its own alone.

    \b
    onnxq check model.onnx model.w8a8.onnx --data samples.npz
    onnxq check model.onnx model.w8a8.onnx --data samples.npz --by-layer --fail-below sqnr=20
    """
    target = options["target"]
    if target is not None:
        if b is not None:
            raise click.UsageError("--target looks at one model: leave out the second one.")
        _hold_against_rules(a, target, as_json=options["as_json"])
        return
    if b is None:
        raise click.UsageError("give a second model to compare with, or --target to look at this one.")
    sampling, guard = sampling_of(options), guard_for_html(options)
    if not options["by_layer"]:
        if options["max_memory"] is not None:
            raise BadRecipe("--max-memory goes with --by-layer")
        if options["is_whole"]:
            raise BadRecipe("--all goes with --by-layer")
    if a.is_dir() or b.is_dir():
        _folders_too(a, b, options, guard)
        return
    if options["by_layer"]:
        _by_layer(a, b, sampling, options, guard)
        return
    found = compare(
        a,
        b,
        sampling,
        threads=options["threads"],
        metric=options["metric"],
        logits=options["logits"],
    )
    write_html(guard, options["html"], lambda: _report(a, b, sampling, options, guard, found))
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        console().print(_tables.check_table(found))
    if options["fail_below"]:
        require_output_floor(found.sqnr, options["fail_below"])
    if not found.is_known:
        sys.exit(Exit.UNCHECKED)


def _folders_too(a: Path, b: Path, options: dict[str, Any], guard: Guard) -> None:
    if not (a.is_dir() and b.is_dir()):
        refuse_folders(a, b)
    found = _folders.check(a, b, options, guard)
    if options["fail_below"]:
        _folders.require_floors_of_parts(found, options["fail_below"])
    if any(isinstance(part.found, Check) and not part.found.is_known for part in found.parts):
        sys.exit(Exit.UNCHECKED)
    _written.end_unverified(*(part.found.unverified() for part in found.parts if isinstance(part.found, ByLayer)))


def _report(a: Path, b: Path, sampling: Sampling, options: dict[str, Any], guard: Guard, found: Check | ByLayer) -> Any:
    from onnxq.report import gather

    with Bars(console(stderr=True)) as bars:
        environment = Environment(options["threads"], bars, guard)
        subject = gather.Subject(b, a, sampling, environment, (command_line(),))
        return gather.of_layers(found, subject) if isinstance(found, ByLayer) else gather.of_check(found, subject)


def _by_layer(a: Path, b: Path, sampling: Sampling, options: dict[str, Any], guard: Guard) -> None:
    if options["metric"] or options["logits"]:
        raise BadRecipe("--metric and --logits are of outputs: leave them out, or --by-layer")
    with Bars(console(stderr=True)) as bars:
        found = by_layer(a, b, sampling, memory=options["max_memory"], threads=options["threads"], progress=bars)
    write_html(guard, options["html"], lambda: _report(a, b, sampling, options, guard, found))
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        console().print(layers_table(found, is_whole=options["is_whole"]))
    if options["fail_below"]:
        require_floors(found, options["fail_below"])
    _written.end_unverified(found.unverified())


def _hold_against_rules(model: Path, target: str, *, as_json: bool) -> None:
    refuse_folders(model)
    found = check_rules(model, target)
    if as_json:
        click.echo(json.dumps({"target": target, "findings": list(map(dataclasses.asdict, found))}, indent=1))
    else:
        console().print(_tables.findings_table(found, target))
    if refused := {finding.node for finding in found if finding.refuses}:
        nodes = "a node breaks" if len(refused) == 1 else f"{len(refused)} nodes break"
        raise CheckFailed(f"{target} would refuse '{model}': {nodes} its rules")

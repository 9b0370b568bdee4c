"""`onnxq doctor`: what is wrong with a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from onnxq.cli import _written
from onnxq.cli._console import Bars, console
from onnxq.cli._diagnosis import diagnosis_table, folder_diagnosis_table
from onnxq.cli._folders import keep
from onnxq.cli._given import guard_of, sampling_of
from onnxq.cli._options import FORCE_OPTION, MODEL, TARGET_OPTION, THREADS_OPTION, data_options
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Diagnosis, Severity
from onnxq.doctor.folders import FolderDiagnosis, examine_folder, mend_folder
from onnxq.doctor.mend import mend
from onnxq.doctor.sarif import to_sarif
from onnxq.errors import BadRecipe, Exit, one_line
from onnxq.files import mirror
from onnxq.job import Environment

#: Samples, unless told otherwise.
LIMIT = 16


@click.command(short_help="Say what is wrong with a model, and mend it.")
@click.argument("model", type=MODEL)
@data_options(limit=LIMIT)
@TARGET_OPTION
@click.option("--ignore", multiple=True, metavar="RULE", help="Do not ask this rule. Repeatable.")
@click.option(
    "--fix", is_flag=True, help="Write a new file without the faults that can be mended, checked by running both."
)
@click.option(
    "--output", "-o", type=MODEL, help="Of --fix: where to write it.  [default: MODEL's name with 'mended' in it]"
)
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--sarif", is_flag=True, help="Print the findings as SARIF 2.1.0, for code hosts.")
def doctor(model: Path, **options: Any) -> None:
    """Say what is wrong with MODEL, quantized by whatever tool: what is slow, silently wrong, or larger than need be.

    MODEL may be a folder of models: each is told under its name, and --fix writes such a folder again.

    Every finding has a severity, a place and a fix. The exit status is 0 where there are notes at most, 4 where there
    are warnings, 5 where there are errors; docs/doctor.md lists the rules.

    \b
    onnxq doctor model.onnx
    onnxq doctor model.onnx --data samples.npz --sarif > findings.sarif
    onnxq doctor model.onnx --fix -o mended.onnx
    """
    sampling = sampling_of(options)
    if options["fix"] and options["sarif"]:
        raise BadRecipe("--sarif is of findings: leave it out, or --fix")
    if options["as_json"] and options["sarif"]:
        raise click.UsageError("--sarif and --json are two forms of the same findings: give one of them")
    if options["output"] is not None and not options["fix"]:
        raise BadRecipe("--output goes with --fix; findings are printed")
    if options["fix"]:
        (_fix_folder if model.is_dir() else _fix)(model, options)
        return
    looked_at: dict[str, Any] = {"target": options["target"], "sampling": sampling, "ignored": options["ignore"]}
    found: Diagnosis | FolderDiagnosis
    with Bars(console(stderr=True)) as bars:
        found = (examine_folder if model.is_dir() else examine)(model, progress=bars, **looked_at)
    if options["sarif"]:
        of_models = [found] if isinstance(found, Diagnosis) else found.parts.values()
        click.echo(
            json.dumps(to_sarif(*of_models, notes=found.notes if isinstance(found, FolderDiagnosis) else ()), indent=1)
        )
    elif options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        console().print(diagnosis_table(found) if isinstance(found, Diagnosis) else folder_diagnosis_table(found))
    if found.worst is Severity.ERROR:
        sys.exit(Exit.ERRORS)
    if found.worst is Severity.WARNING:
        sys.exit(Exit.WARNINGS)


def _fix_folder(folder: Path, options: dict[str, Any]) -> None:
    guard = guard_of(options)
    keep(guard, folder)
    with Bars(console(stderr=True)) as bars:
        done = mend_folder(
            folder,
            options["output"],
            sampling=sampling_of(options),
            ignored=options["ignore"],
            environment=Environment(options["threads"], bars, guard),
        )
    if options["as_json"]:
        click.echo(done.to_json())
    else:
        for name, part in done.parts.items():
            _written.show(part, f"{name} mended {', '.join(part.rules)}")
        for said in (
            *(f"left out {file}: {why}" for file, why in done.left_out.items()),
            *map("note: {}".format, done.notes),
        ):
            console().print(one_line(said))
    if not done.is_known:
        said = f"onnxq: {done.output} was written, but not all of it could be compared with {folder}"
        click.echo(mirror.as_given(said), err=True)
        sys.exit(Exit.UNCHECKED)


def _fix(model: Path, options: dict[str, Any]) -> None:
    done = _written.made_or_copied(
        model,
        options,
        lambda environment: mend(
            model,
            options["output"],
            sampling=sampling_of(options),
            ignored=options["ignore"],
            environment=environment,
        ),
    )
    if done is None:
        return
    if options["as_json"]:
        _written.echo_json(done)
    else:
        _written.show(done, f"mended {', '.join(done.rules)}")
    if done.check is None or not done.check.is_known:
        said = f"onnxq: {done.output} was written, but could not be compared with {model}"
        click.echo(mirror.as_given(said), err=True)
        sys.exit(Exit.UNCHECKED)

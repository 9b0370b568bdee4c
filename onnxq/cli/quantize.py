"""`onnxq quantize`: make a quantized model and check it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from onnxq import pipeline
from onnxq.checking.result import Result
from onnxq.cli import _folders, _tables, _written
from onnxq.cli._console import Bars, console, say
from onnxq.cli._given import (
    effort_of,
    guard_of,
    plan_of,
    preprocessing_of,
    profile_of,
    recipe_of,
    refuse_options_beside_like,
    sampling_of,
)
from onnxq.cli._options import (
    CALIBRATION_OPTION,
    DATA_OPTIONS,
    DEFAULTS,
    EFFORT_OPTIONS,
    FORCE_OPTION,
    FORMATS_OPTION,
    METRIC_OPTIONS,
    MODEL,
    OUTPUT_OPTION,
    PLAN_OPTIONS,
    SHARD_OPTION,
    THREADS_OPTION,
)
from onnxq.cli._report import HTML_OPTION, announced, command_line, write_beside
from onnxq.cli._types import Share
from onnxq.files.guard import Guard
from onnxq.job import Environment
from onnxq.preference import PREFERENCES, SEARCHES
from onnxq.recipe import AIM
from onnxq.schemes import SCHEMES

_QUANTIZE_HELP = """Quantize MODEL, check the saved file and show what became of it.

MODEL may be a folder of models that are loaded together (of onnxruntime-genai, optimum, transformers.js,
diffusers): the result is such a folder again.

\b
Schemes:
""" + "\n".join(f"{word:13} {scheme.meaning}" for word, scheme in SCHEMES.items())


@click.command(help=_QUANTIZE_HELP, short_help="Make a quantized model and check it.")
@click.argument("model", type=MODEL)
@OUTPUT_OPTION
@PLAN_OPTIONS
@DATA_OPTIONS
@CALIBRATION_OPTION
@EFFORT_OPTIONS
@click.option(
    "--ranges", type=MODEL, help="Take activation ranges from this file, or leave them there for the next time."
)
@click.option(
    "--evidence",
    type=MODEL,
    help="Take what data say of layers, by which codes of few bits are chosen, from this .npz, or leave it there for "
    "the next time.",
)
@click.option("--plan", "plan_file", type=MODEL, help="Carry out a plan that 'onnxq plan -o' wrote, as it is.")
@click.option(
    "--profile",
    type=MODEL,
    help="Decide by the times in this file of 'onnxq profile', of the machine that will run the model."
    "  [default: measure them here]",
)
@click.option("--save-profile", type=MODEL, help="Write the times that decided to this file, for --profile.")
@click.option("--like", type=MODEL, help="Make MODEL as this quantized model was made: same recipe, target and plan.")
@click.option(
    "--min-sqnr",
    type=float,
    help="dB of signal to noise that every output must reach, or nothing is written. Longer formats are tried first."
    f"  [default: {AIM:g}, as far as longer formats reach it]",
)
@click.option(
    "--prefer",
    type=click.Choice(list(PREFERENCES)),
    help="What wins where speed, size and accuracy disagree; balanced: speed and size, as long as decisions hold."
    f"  [default: {DEFAULTS.prefer}]",
)
@click.option(
    "--effort",
    type=click.Choice(list(SEARCHES)),
    help=f"How many plans are measured: for seconds, less than a minute, or minutes.  [default: {DEFAULTS.effort}]",
)
@click.option(
    "--accuracy-level",
    type=click.IntRange(0, 4),
    help="Of MatMulNBits: 4 rounds activations to int8 inside and is fast, 0 computes in float; for -t onnx a session "
    "option decides."
    f"  [default: {DEFAULTS.accuracy_level}]",
)
@click.option("--keep-slow", is_flag=True, default=None, help="Keep quantized nodes even where float is faster.")
@click.option("--no-check", is_flag=True, help="Run nothing: no kernel is weighed against float, no file is checked.")
@SHARD_OPTION
@THREADS_OPTION
@_folders.FOLDER_OPTIONS
@click.option(
    "--strict", is_flag=True, help="Fail if there is nothing to quantize or to gain, instead of copying MODEL to -o."
)
@FORCE_OPTION
@click.option(
    "--evaluate",
    metavar="MODULE:FUNCTION",
    help="Your own score: a function of a model's path (or of a parameter called session), the higher the better; "
    "also file.py:function.",
)
@click.option(
    "--max-drop",
    type=Share(),
    metavar="FLOAT",
    help="How far that score may fall, 1% being 0.01. Longer formats are tried until it does not, or nothing is "
    "written.",
)
@METRIC_OPTIONS
@click.option(
    "--budget",
    metavar="BOUND",
    help="Search for the best plan within size=25%, bits=3.5 or latency=0.6, or for the smallest one with drop=0.01.",
)
@FORMATS_OPTION
@click.option("--trace", type=MODEL, help="Write the graph after every step to this folder, as ONNX text.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--report", type=MODEL, help="Write the result as JSON to this file.")
@HTML_OPTION
def quantize(model: Path, **options: Any) -> None:
    recipe = recipe_of(options)
    guard = guard_of(options)
    if options["like"]:
        refuse_options_beside_like()
    if model.is_dir():
        _folders.quantize(model, options, guard)
        return
    _folders.refuse_options_of_folders(model, options)
    announced(guard, options["html"])
    profile = profile_of(options, guard)
    with Bars(console(stderr=True)) as bars:
        result = pipeline.quantize(
            model,
            options["output"],
            recipe,
            target=options["target"],
            data=options["data"],
            preprocessing=preprocessing_of(options),
            limit=options["limit"],
            seed=options["seed"],
            ranges=options["ranges"],
            evidence=options["evidence"],
            effort=effort_of(options),
            plan=plan_of(options, recipe),
            profile=profile,
            like=options["like"],
            check=not options["no_check"],
            threads=options["threads"],
            trace=options["trace"],
            guard=guard,
            progress=bars,
            strict=options["strict"],
            evaluate=options["evaluate"],
            max_drop=options["max_drop"],
            metric=options["metric"],
            labels=options["labels"],
            logits=options["logits"],
            budget=options["budget"],
            formats=options["formats"],
            shard_size=options["shard_size"],
        )
    write_beside(guard, options, result, profile, lambda: _report(model, result, options, guard))
    if options["as_json"]:
        click.echo(result.to_json())
    elif result.copied:
        say(f"{result.copied}; {result.output} is a copy of it")
    else:
        _show(result, has_data=bool(options["data"]))
    floor_given = options["min_sqnr"] is not None or result.recipe.min_sqnr != DEFAULTS.min_sqnr
    _written.end_unverified(result.unverified(floor_given=floor_given))


def _report(model: Path, result: Result, options: dict[str, Any], guard: Guard) -> Any:
    from onnxq.report import gather

    data = ["--data", options["data"]] if options["data"] else []
    again = shlex.join(["onnxq", "quantize", str(model), "--like", str(result.output), "-o", "again.onnx", *data])
    check = shlex.join(["onnxq", "check", str(model), str(result.output), *data])
    with Bars(console(stderr=True)) as bars:
        environment = Environment(options["threads"], bars, guard)
        commands = (command_line(), *([] if result.copied else [again, check]))
        return gather.of_result(
            result, gather.Subject(result.output, model, sampling_of(options), environment, commands)
        )


def _show(result: Result, *, has_data: bool) -> None:
    out = console()
    chose = f" (auto: {'there is' if has_data else 'no'} calibration data)" if result.was_auto else ""
    out.print(f"{result.output}: {result.plan.scheme}{chose} for {result.plan.target}\n", style="bold")
    out.print(_tables.plan_table(result.plan))
    out.print()
    out.print(_tables.result_table(result))

"""The command line: parse, call, print. The one place where an exception becomes an exit code."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn

from onnxq import collectors, pipeline, save, tables, targets
from onnxq.check import check_models
from onnxq.data import inputs_of, open_data
from onnxq.errors import BadData, NothingToDo, OnnxqError
from onnxq.images import parse_preprocessing
from onnxq.load import load_model
from onnxq.plan import load_plan
from onnxq.ranges import NO_RANGES
from onnxq.recipe import KEEP, SCHEMES, Recipe, Rule, load_recipe, parse_set
from onnxq.runtime import THREADS, Session
from onnxq.synthesize import synthesize
from onnxq.version import __version__

_MODEL = click.Path(path_type=Path)
#: Columns of tables that do not go to a terminal.
PIPED_WIDTH = 110
_DEFAULTS = Recipe()


class _Bars:
    """Progress bars on a terminal; nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._is_shown = console.is_terminal
        self._bars = Progress(*columns, console=console, transient=True, disable=not self._is_shown)
        self._task: TaskID | None = None

    def __enter__(self) -> _Bars:
        if self._is_shown:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_shown:
            self._bars.stop()

    def start(self, what: str, total: int | None = None) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=total)

    def advance(self, done: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, done)


class _Errors(click.Group):
    """Turns an `OnnxqError` into its sentence and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OnnxqError as error:
            prefix = "onnxq: " if error.exit_code else ""
            click.echo(f"{prefix}{error}", err=bool(error.exit_code))
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("onnxq: interrupted", err=True)
            sys.exit(128 + signal.SIGINT)


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


_DATA_OPTIONS = _options(
    click.option(
        "--data",
        metavar="WHERE",
        help="Calibration samples: .npz, .npy, a folder of those or of images, or module:function yielding dicts.",
    ),
    click.option(
        "--preprocess",
        metavar="WORDS",
        help="How images become inputs, e.g. 'size=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225'.",
    ),
    click.option(
        "--limit",
        type=click.IntRange(1),
        default=pipeline.LIMIT,
        show_default=True,
        help="Use at most so many samples.",
    ),
)
_PLAN_OPTIONS = _options(
    click.option(
        "--scheme",
        "-s",
        type=click.Choice(list(SCHEMES)),
        help=f"What to make of the weights and activations.  [default: {_DEFAULTS.scheme}]",
    ),
    click.option(
        "--target",
        "-t",
        type=click.Choice(targets.names()),
        default="ort-cpu",
        show_default=True,
        help="Where the model will run.",
    ),
    click.option(
        "--recipe", type=_MODEL, help="A TOML file with these options and [[rule]] tables; options given here win."
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="PATTERN",
        help="Keep nodes of this name in float: a glob, or 're:' and a regular expression. Repeatable.",
    ),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="PATTERN=SCHEME",
        help="Another scheme for nodes of this name, e.g. 'layers.0/*=w8a16'. Repeatable.",
    ),
    click.option(
        "--block-size",
        type=int,
        help="Weights that share a scale, in 4-bit and w8a16 formats.  [default: 32, nf4 and fp4 64]",
    ),
    click.option(
        "--reduce-range",
        is_flag=True,
        default=None,
        help="7-bit weights for w8a8: for processors without VNNI, whose 8-bit products saturate.",
    ),
    click.option(
        "--requantize",
        is_flag=True,
        default=None,
        help="Take a model that is quantized already, and quantize what is still in float.",
    ),
)


def _recipe(options: dict[str, Any]) -> Recipe:
    """The recipe file, if there is one, with the options given on the command line laid over it."""
    base = load_recipe(options["recipe"]) if options.get("recipe") else Recipe()
    names = {field.name for field in dataclasses.fields(Recipe)}
    given = {key: value for key, value in options.items() if key in names and value is not None}
    rules = [Rule(KEEP, pattern) for pattern in options["keep"]] + [parse_set(text) for text in options["sets"]]
    return dataclasses.replace(base, **given, rules=(*base.rules, *rules))


def _console(*, stderr: bool = False) -> Console:
    """Where tables and bars go. Names of nodes may hold brackets: nothing in them is markup."""
    console = Console(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPED_WIDTH)
    return console


@click.group(cls=_Errors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="onnxq")
def main() -> None:
    """A quantization compiler for ONNX.

    \b
    onnxq quantize model.onnx                        4-bit weights, no data needed
    onnxq quantize model.onnx --data samples.npz     int8 weights and activations
    onnxq quantize model.onnx -s nf4 -o small.onnx   a format by name

    The result runs in stock onnxruntime. What is not worth quantizing stays in float, with the reason.
    """


_QUANTIZE_HELP = """Quantize MODEL, check the saved file and show what became of it.

\b
Schemes:
""" + "\n".join(f"{word:13} {meaning}" for word, meaning in SCHEMES.items())


@main.command(help=_QUANTIZE_HELP, short_help="Make a quantized model and check it.")
@click.argument("model", type=_MODEL)
@click.option(
    "--output",
    "-o",
    type=_MODEL,
    help="Where to write it.  [default: MODEL's name with the scheme in it, in this folder]",
)
@_PLAN_OPTIONS
@_DATA_OPTIONS
@click.option(
    "--calibration",
    type=click.Choice(collectors.names()),
    help=f"How activation ranges are found.  [default: {_DEFAULTS.calibration}]",
)
@click.option(
    "--ranges", type=_MODEL, help="Take activation ranges from this file, or leave them there for the next time."
)
@click.option("--plan", "plan_file", type=_MODEL, help="Carry out a plan that 'onnxq plan -o' wrote, as it is.")
@click.option(
    "--min-sqnr",
    type=float,
    help=f"dB of signal to noise that every output must reach.  [default: {_DEFAULTS.min_sqnr:g}]",
)
@click.option(
    "--accuracy-level",
    type=click.IntRange(0, 4),
    help="Of MatMulNBits: 4 rounds activations to int8 inside and is fast, 0 computes in float."
    f"  [default: {_DEFAULTS.accuracy_level}]",
)
@click.option("--keep-slow", is_flag=True, default=None, help="Keep quantized nodes even where float is faster.")
@click.option("--no-check", is_flag=True, help="Do not run the saved file.")
@click.option(
    "--threads",
    type=click.IntRange(0),
    default=THREADS,
    show_default=True,
    help="Threads for timing; 0: as many as onnxruntime likes.",
)
@click.option("--force", "-f", is_flag=True, help="Replace the output if it exists.")
@click.option("--trace", type=_MODEL, help="Write the graph after every step to this folder, as ONNX text.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--report", type=_MODEL, help="Write the result as JSON to this file.")
def quantize(model: Path, **options: Any) -> None:
    if options["report"]:
        save.check_text(options["report"], [model])
    with _Bars(_console(stderr=True)) as bars:
        result = pipeline.quantize(
            model,
            options["output"],
            _recipe(options),
            target=options["target"],
            data=options["data"],
            preprocessing=parse_preprocessing(options["preprocess"]) if options["preprocess"] else None,
            limit=options["limit"],
            ranges=options["ranges"],
            plan=load_plan(options["plan_file"]) if options["plan_file"] else None,
            force=options["force"],
            check=not options["no_check"],
            threads=options["threads"],
            trace=options["trace"],
            progress=bars,
        )
    if options["report"]:
        save.write_text(options["report"], result.to_json(), [model, result.output])
    if options["as_json"]:
        click.echo(result.to_json())
        return
    out = _console()
    chose = f" (auto: {'there is' if options['data'] else 'no'} calibration data)" if result.was_auto else ""
    out.print(f"{result.output}: {result.plan.scheme}{chose} for {result.plan.target}\n", style="bold")
    out.print(tables.plan_table(result.plan))
    out.print()
    out.print(tables.result_table(result))


@main.command(short_help="Show what would become of each node, and why.")
@click.argument("model", type=_MODEL)
@click.option(
    "--output", "-o", type=_MODEL, help="Write the plan as JSON, to be edited and given to 'quantize --plan'."
)
@_PLAN_OPTIONS
@_DATA_OPTIONS
@click.option("--nodes", is_flag=True, help="One line for each node.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(model: Path, **options: Any) -> None:
    """Show what would become of each node of MODEL, and why, without measuring or writing anything.

    'quantize' starts from this plan and gives back to float what turns out to lose time or accuracy.
    """
    preprocessing = parse_preprocessing(options["preprocess"]) if options["preprocess"] else None
    job = pipeline.open_job(
        model, _recipe(options), options["target"], options["data"], preprocessing, options["limit"]
    )
    if options["output"]:
        save.write_text(options["output"], job.plan.to_json(), [model])
    if options["as_json"]:
        click.echo(job.plan.to_json())
        return
    out = _console()
    out.print(f"{model}: {job.plan.scheme} for {job.plan.target}\n")
    out.print(tables.plan_table(job.plan, each_node=options["nodes"]))


@main.command(short_help="Find activation ranges on sample data.")
@click.argument("model", type=_MODEL)
@click.option("--output", "-o", type=_MODEL, required=True, help="Where to write the ranges.")
@_PLAN_OPTIONS
@_DATA_OPTIONS
@click.option(
    "--calibration",
    type=click.Choice(collectors.names()),
    help=f"How activation ranges are found.  [default: {_DEFAULTS.calibration}]",
)
def calibrate(model: Path, **options: Any) -> None:
    """Find the activation ranges of MODEL on --data, for 'quantize --ranges'."""
    preprocessing = parse_preprocessing(options["preprocess"]) if options["preprocess"] else None
    if not options["data"]:
        raise BadData("ranges are found by running the model on samples: give --data")
    with _Bars(_console(stderr=True)) as bars:
        job = pipeline.open_job(
            model, _recipe(options), options["target"], options["data"], preprocessing, options["limit"], progress=bars
        )
        found = pipeline.find_ranges(job)
    if found is NO_RANGES:
        raise NothingToDo(f"{model}: {job.plan.scheme} needs no ranges of activations")
    save.write_text(options["output"], found.to_json(), [model])
    click.echo(f"{options['output']}: {len(found.values)} ranges by {found.method}, {len(found.problems)} without")


@main.command(short_help="Compare two models: error, kernels, speed.")
@click.argument("a", type=_MODEL)
@click.argument("b", type=_MODEL)
@_DATA_OPTIONS
@click.option(
    "--threads",
    type=click.IntRange(0),
    default=THREADS,
    show_default=True,
    help="Threads for timing; 0: as many as onnxruntime likes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(a: Path, b: Path, **options: Any) -> None:
    """Compare model B with model A: outputs with onnxruntime's optimizer on and off, kernels, time in turns."""
    model = load_model(a)
    load_model(b)
    in_float = Session(a, threads=options["threads"])
    if options["data"]:
        preprocessing = parse_preprocessing(options["preprocess"]) if options["preprocess"] else None
        feeds = list(open_data(options["data"], inputs_of(model), preprocessing).limited(min(16, options["limit"])))
        what = f"{len(feeds)} samples"
    else:
        feeds = synthesize(model, in_float, pipeline.SYNTHETIC)
        what = f"{len(feeds)} made-up inputs"
    found = check_models(in_float, b, feeds, what, threads=options["threads"])
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _console().print(tables.check_table(found))


@main.command(short_help="Show what is in a model.")
@click.argument("model", type=_MODEL)
def inspect(model: Path) -> None:
    """Show what is in MODEL: interface, operators, and what its weights are stored as."""
    _console().print(tables.model_table(load_model(model)))

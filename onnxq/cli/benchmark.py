"""`onnxq benchmark`: what each format keeps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from onnxq.analysis import Benchmark, benchmark_arrays, benchmark_made, report, run_benchmark
from onnxq.analysis.benchmarks.arrays import ALL
from onnxq.analysis.benchmarks.plot import save_plot
from onnxq.analysis.synthetic import MAKERS
from onnxq.checkpoints.encode_arrays import float_arrays, holds_arrays
from onnxq.cli._console import Bars, console
from onnxq.cli._given import guard_of, preprocessing_of, tell_moot
from onnxq.cli._options import DATA_OPTIONS, FORCE_OPTION, FORM_OPTIONS, MODEL
from onnxq.errors import BadRecipe, one_line

#: Seeds that one call may ask for.
MOST_SEEDS = 100


@click.command(short_help="Compare the formats on synthetic weights, on arrays, and on a model's own.")
@click.argument("model", type=MODEL, required=False)
@FORM_OPTIONS
@click.option(
    "--make",
    "makers",
    multiple=True,
    metavar="WORDS",
    help=f"Weights to make up, with parameters: {', '.join(MAKERS)}; e.g. 'gaussian mean=0.1 deviation=2' or "
    "'outliers rate=0.01 size=10'. Repeatable.",
)
@click.option(
    "--size", "sizes", multiple=True, metavar="N×K", help="Of --make, e.g. 512x2048. Repeatable.  [default: 256x1024]"
)
@click.option("--seeds", type=click.IntRange(1, MOST_SEEDS), default=1, help="Make each of --make so many times.")
@DATA_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the figures as CSV.")
@click.option("--plot", type=MODEL, help="Draw SQNR over bits a weight to this file: .png, .svg or .pdf.")
@FORCE_OPTION
def benchmark(model: Path | None, **options: Any) -> None:
    """Compare what the formats keep of synthetic weights, and of MODEL's own, all quantized at once.

    MODEL may also be a file of arrays (.npy, .npz, .safetensors) or a folder of such: then each of them is compared,
    and all together.

    Retention is the share of float's decisions (the largest output) that stay as they are. --seed is that of the
    synthetic weights, too.
    """
    if options["as_json"] and options["as_csv"]:
        raise click.UsageError("choose one of --json and --csv")
    guard = guard_of(options, seeds_weights=True)
    if options["plot"]:
        guard.writes(options["plot"], "--plot")
    with Bars(console(stderr=True)) as bars:
        found, of_model = _found(model, options, bars)
    if options["plot"]:
        guard.require_unread(options["plot"])
        save_plot(found, options["plot"], replace=bool(options["force"]))
    if options["as_json"] or options["as_csv"]:
        click.echo(found.to_json() if options["as_json"] else found.to_csv(), nl=options["as_json"])
        return
    _show(found, of_model)


def _found(model: Path | None, options: dict[str, Any], bars: Bars) -> tuple[Benchmark, str | None]:
    """The figures, and which table is that of a model."""
    words, wanted, seed = options["weights"], options["granularity"], options["seed"]
    if options["makers"] or options["sizes"] or options["seeds"] > 1:
        if model is not None or options["data"]:
            raise BadRecipe("--make, --size and --seeds are of made-up weights: leave out the model, arrays and data")
        sizes = [_size(text) for text in options["sizes"]] or [(256, 1024)]
        seeds = range(seed or 0, (seed or 0) + options["seeds"])
        made = options["makers"] or ("gaussian",)
        return benchmark_made(made, words, wanted, sizes=sizes, seeds=seeds, progress=bars), None
    if model is not None and holds_arrays(model):
        if options["data"]:
            raise BadRecipe(f"{model} holds arrays, which no data run through: leave out --data")
        tell_moot({"preprocess", "tokenizer", "lengths"}, "no data run through arrays")
        return benchmark_arrays(float_arrays(model), words, wanted, seed=seed or 0, progress=bars), None
    found = run_benchmark(
        model,
        words,
        wanted,
        data=options["data"],
        preprocessing=preprocessing_of(options),
        limit=options["limit"],
        seed=seed,
        progress=bars,
    )
    return found, None if model is None else str(model)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,7})[x×](\d{1,7})", text)
    if match is None:
        raise BadRecipe(f"--size: invalid size '{text}'; example: 512x2048")
    return int(match[1]), int(match[2])


def _show(found: Benchmark, of_model: str | None) -> None:
    out = console()
    for name, rows in found.tables.items():
        title = f"{name} (run on {found.inputs})" if name == of_model else name if name == ALL else f"{name} weights"
        out.print(one_line(title), style="bold")
        out.print(report.benchmark_table(rows))
        out.print()
    notes = [f"note: {found.note}"] if found.note else []
    for line in (*notes, *report.problem_lines(found), *report.lead_lines(found)):
        out.print(one_line(line), soft_wrap=True)

"""`onnxq search`: which plans no other one beats in both size and accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from onnxq import frontier
from onnxq.cli import _plots
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import effort_of, guard_of, preprocessing_of, recipe_of
from onnxq.cli._options import (
    DATA_OPTIONS,
    DEFAULTS,
    EFFORT_OPTIONS,
    FORCE_OPTION,
    FORMATS_OPTION,
    LOGITS_OPTION,
    MODEL,
    SEARCH_OPTIONS,
    TARGET_OPTION,
    THREADS_OPTION,
)
from onnxq.cli._report import HTML_OPTION, announced, command_line, write_html
from onnxq.drafts.budgeted import progress_of
from onnxq.errors import BadRecipe, amount
from onnxq.files.guard import may_write_in
from onnxq.preference import SEARCHES
from onnxq.searching.budget import parse_budget


@click.command(short_help="Show which plans are the best of their size, and write one.")
@click.argument("model", type=MODEL)
@click.option("--output", "-o", "--write-plan", type=MODEL, help="Write the plan of a point, for 'quantize --plan'.")
@click.option("--at", metavar="BOUND", help="Which point: the most accurate one within size=25% or bits=3.5.")
@TARGET_OPTION
@FORMATS_OPTION
@LOGITS_OPTION
@SEARCH_OPTIONS
@DATA_OPTIONS
@EFFORT_OPTIONS
@click.option("--evidence", type=MODEL, help="Take what data say of layers from this .npz, or leave it there.")
@click.option("--latency", is_flag=True, help="Time kernels too, and choose also from those that compute in integers.")
@click.option(
    "--points", type=click.IntRange(2, 1000), default=frontier.POINTS, show_default=True, help="Sizes to look at."
)
@click.option(
    "--effort",
    type=click.Choice(list(SEARCHES)),
    help=f"How many plans are measured.  [default: {DEFAULTS.effort}]",
)
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the points, their plans too, as JSON.")
@click.option("--report", type=MODEL, help="Write them as JSON to this file.")
@HTML_OPTION
def search(model: Path, **options: Any) -> None:
    """Search for the best plan of each size of MODEL, and show those that no other one beats.

    Every point is a plan that was run. What is measured is kept in a file until the search ends, so that one that was
    stopped goes on.
    """
    refuse_folders(model)
    guard = guard_of(options)
    announced(guard, options["html"])
    at = None if options["at"] is None else parse_budget(options["at"])
    quantity: Literal["size", "bits"] = "bits" if at is not None and at.quantity == "bits" else "size"
    if at is not None and at.quantity != quantity:
        raise BadRecipe("--at: a point is chosen by size=25% or bits=3.5")
    if (at is None) != (options["output"] is None):
        raise BadRecipe(
            "-o writes the plan of the point that --at names: give both, such as -o plan.json --at bits=3.5"
        )
    if options["output"]:
        guard.writes(options["output"])
    progress_file = None
    if options["output"] or may_write_in(Path()):  # else only a next search would miss what is kept
        progress_file = progress_of(options["output"] or Path(model.name))
    with Bars(console(stderr=True)) as bars:
        found = frontier.search(
            model,
            recipe_of({"keep": (), "sets": (), **options}),
            target=options["target"],
            data=options["data"],
            preprocessing=preprocessing_of(options),
            limit=options["limit"],
            seed=options["seed"],
            evidence=options["evidence"],
            effort=effort_of(options),
            formats=options["formats"],
            logits=options["logits"],
            latency=options["latency"],
            points=options["points"],
            progress_file=progress_file,
            threads=options["threads"],
            guard=guard,
            progress=bars,
        )
    if at is not None:
        guard.write_text(options["output"], found.nearest(quantity, at.amount).plan.to_json())
    if options["report"]:
        guard.write_text(options["report"], found.to_json())
    write_html(guard, options["html"], lambda: _report(model, found))
    if options["as_json"]:
        click.echo(found.to_json())
        return
    out = console()
    plans = amount(len(found.points), "plan")
    out.print(f"{model}: {plans} that no other one beats, of {found.runs} measured\n", style="bold")
    out.print(_plots.front_table(found))
    out.print(_plots.front_plot(found))


def _report(model: Path, found: frontier.Frontier) -> Any:
    from onnxq.report import gather

    return gather.of_search(found, gather.Subject(model, commands=(command_line(),)))

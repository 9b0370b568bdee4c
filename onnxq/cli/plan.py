"""`onnxq plan`: show what would become of each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq.cli import _tables
from onnxq.cli._console import console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of, recipe_of, sampling_of
from onnxq.cli._options import DATA_OPTIONS, FORCE_OPTION, MODEL, PLAN_OPTIONS
from onnxq.job import Environment, open_job


@click.command(short_help="Show what would become of each node, and why.")
@click.argument("model", type=MODEL)
@click.option("--output", "-o", type=MODEL, help="Write the plan as JSON, to be edited and given to 'quantize --plan'.")
@PLAN_OPTIONS
@DATA_OPTIONS
@FORCE_OPTION
@click.option("--nodes", is_flag=True, help="One line for each node.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(model: Path, **options: Any) -> None:
    """Show what would become of each node of MODEL, and why, without measuring or writing anything.

    'quantize' starts from this plan and gives back to float what turns out to lose time or accuracy. What it is told
    of that (--effort, --prefer, --min-sqnr, --keep-slow) decides nothing here, and is given to 'quantize' alone.
    """
    refuse_folders(model)
    guard = guard_of(options)
    if options["output"]:
        guard.writes(options["output"])
    job = open_job(model, recipe_of(options), options["target"], sampling_of(options), Environment(guard=guard))
    if options["output"]:
        guard.write_text(options["output"], job.plan.to_json())
    if options["as_json"]:
        click.echo(job.plan.to_json())
        return
    out = console()
    out.print(f"{model}: {job.plan.scheme} for {job.plan.target}\n")
    out.print(_tables.plan_table(job.plan, each_node=options["nodes"]))

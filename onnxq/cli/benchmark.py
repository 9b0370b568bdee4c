"""`onnxq benchmark`: what each format keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq.analysis import report, run_benchmark
from onnxq.cli._console import Bars, console
from onnxq.cli._options import DATA_OPTIONS, FORM_OPTIONS, MODEL, preprocessing_of
from onnxq.errors import one_line


@click.command(short_help="Compare the formats on synthetic weights and on a model's own.")
@click.argument("model", type=MODEL, required=False)
@FORM_OPTIONS
@DATA_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def benchmark(model: Path | None, **options: Any) -> None:
    """Compare what the formats keep of synthetic weights, and of MODEL's own, all quantized at once.

    Retention is the share of float's decisions (the largest output) that stay as they are. --seed is that of the
    synthetic weights, too.
    """
    with Bars(console(stderr=True)) as bars:
        found = run_benchmark(
            model,
            options["weights"],
            options["granularity"],
            data=options["data"],
            preprocessing=preprocessing_of(options),
            limit=options["limit"],
            seed=options["seed"],
            progress=bars,
        )
    if options["as_json"]:
        click.echo(found.to_json())
        return
    out = console()
    for name, rows in found.tables.items():
        of_model = model is not None and name == str(model)
        out.print(f"{name} (run on {found.inputs})" if of_model else f"{name} weights", style="bold")
        out.print(report.benchmark_table(rows))
        out.print()
    for line in (*report.problem_lines(found), *report.lead_lines(found)):
        out.print(one_line(line), soft_wrap=True)

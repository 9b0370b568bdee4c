"""`onnxq import-weights`: put the weights of a Linear4bit checkpoint into a float model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from onnxq import targets
from onnxq.checkpoints.import_weights import Imported
from onnxq.checkpoints.import_weights import import_weights as put_in
from onnxq.cli import _tables
from onnxq.cli._console import Bars, console
from onnxq.cli._options import FORCE_OPTION, MODEL, THREADS_OPTION, guard_of
from onnxq.errors import one_line
from onnxq.job import Environment


@click.command(short_help="Put the weights of a 4-bit checkpoint into a float model.")
@click.argument("model", type=MODEL)
@click.argument("checkpoint", type=MODEL)
@click.option("--output", "-o", type=MODEL, help="Where to write it.  [default: MODEL's name with 'linear4bit' in it]")
@click.option(
    "--target",
    "-t",
    type=click.Choice(targets.names()),
    default="ort-cpu",
    show_default=True,
    help="Where the model will run.",
)
@click.option("--partial", is_flag=True, help="Leave out tensors that fit nowhere, instead of refusing the checkpoint.")
@click.option("--no-check", is_flag=True, help="Do not run the saved file.")
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def import_weights(model: Path, checkpoint: Path, **options: Any) -> None:
    """Put the 4-bit weights of CHECKPOINT (.safetensors or .npz) into the products of the float MODEL, by name.

    Tensors are called {prefix}.weight_4bit (uint8 [out, in / 2]), {prefix}.scales_4bit (float16 [out, groups]) and
    {prefix}.bias; the prefix is the name of the product's node, or of its weight without '.weight'. Nothing is
    quantized again.
    """
    with Bars(console(stderr=True)) as bars:
        done = put_in(
            model,
            checkpoint,
            options["output"],
            target=options["target"],
            partial=options["partial"],
            check=not options["no_check"],
            environment=Environment(options["threads"], bars, guard_of(options)),
        )
    if options["as_json"]:
        click.echo(json.dumps(_as_dict(done), indent=1))
        return
    out = console()
    n = len(done.match.blocks)
    products = "1 product" if n == 1 else f"{n} products"
    out.print(f"{done.output}: {products} from {checkpoint} for {done.plan.target}\n", style="bold")
    out.print(_tables.plan_table(done.plan))
    out.print()
    for word, names in (
        ("not in the checkpoint", done.match.missing),
        ("not in the model", done.match.surplus),
        ("do not fit", done.match.misfits),
        ("other tensors", done.match.unused),
    ):
        if names:
            out.print(one_line(f"{word}: {', '.join(names)}"))
    out.print(_tables.import_table(done.bytes_before, done.bytes_after, done.check))


def _as_dict(done: Imported) -> dict[str, object]:
    return {
        "output": str(done.output),
        "target": done.plan.target,
        **dataclasses.asdict(done.match),
        "check": None if done.check is None else done.check.to_dict(),
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
    }

"""`onnxq dequantize`: make a float model of a quantized one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq.cli import _written
from onnxq.cli._folders import refuse_folders
from onnxq.cli._options import FORCE_OPTION, MODEL, SHARD_OPTION, THREADS_OPTION
from onnxq.conversion.dequantize import TYPES
from onnxq.conversion.dequantize import dequantize as make_float


@click.command(short_help="Make a float model of a quantized one.")
@click.argument("model", type=MODEL)
@click.option(
    "--dtype",
    type=click.Choice(TYPES),
    default="float32",
    show_default=True,
    help="Of the weights in the file; short ones become float32 when the model is loaded.",
)
@click.option("--output", "-o", type=MODEL, help="Where to write it.  [default: MODEL's name with the type in it]")
@click.option("--no-check", is_flag=True, help="Do not run the saved file.")
@SHARD_OPTION
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def dequantize(model: Path, **options: Any) -> None:
    """Make a float model of MODEL, quantized by whatever tool.

    Weights are exactly what their codes stand for; activations are not rounded any more. Reads QuantizeLinear and
    DequantizeLinear, DynamicQuantizeLinear with MatMulInteger, onnxruntime's MatMulNBits, MatMulBnb4 and
    GatherBlockQuantized, and the nodes of the onnxq domain. A model in floats is copied to --output as it is.
    """
    refuse_folders(model)
    done = _written.made_or_copied(
        model,
        options,
        lambda environment: make_float(
            model,
            options["output"],
            dtype=options["dtype"],
            check=not options["no_check"],
            environment=environment,
        ),
    )
    if done is None:
        return
    if options["as_json"]:
        _written.echo_json(done)
    else:
        _written.show(done, f"weights in {done.dtype}")
    _written.end(done.check)

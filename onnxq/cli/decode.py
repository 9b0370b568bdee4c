"""`onnxq decode`: floats of what `onnxq encode` wrote, or of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np

from onnxq.checkpoints.encode_arrays import decode_file, write_arrays
from onnxq.cli._console import say
from onnxq.cli._given import guard_of
from onnxq.cli._options import FORCE_OPTION, MODEL
from onnxq.errors import amount
from onnxq.formats.kinds.arguments import as_float

_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@click.command(short_help="Make floats of encoded arrays.")
@click.argument("file", type=MODEL)
@click.option(
    "--dtype",
    type=click.Choice(list(_TYPES)),
    default="float32",
    show_default=True,
    help="Of the floats; bfloat16 goes into .safetensors only.",
)
@click.option("--output", "-o", type=MODEL, required=True, help="Where to write them: .npy, .npz or .safetensors.")
@FORCE_OPTION
def decode(file: Path, **options: Any) -> None:
    """Make floats of the weights in FILE: a .gguf, or a .safetensors or .npz that 'onnxq encode' wrote."""
    guard = guard_of(options)
    guard.reads(file)
    guard.writes(options["output"])
    dtype = _TYPES[options["dtype"]]
    arrays = (
        (name, lambda make=make: floats if (floats := make()).dtype.kind in "iub" else as_float(floats, dtype))
        for name, make in decode_file(file)
    )
    count = write_arrays(options["output"], arrays, replace=bool(options["force"]))
    say(f"{options['output']}: {amount(count, 'array')}")

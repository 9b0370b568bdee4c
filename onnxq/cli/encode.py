"""`onnxq encode`: arrays without a model in a number format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from onnxq import formats
from onnxq.algorithms import DATA_FREE
from onnxq.checkpoints.encode_arrays import encode_arrays, open_arrays
from onnxq.cli._console import say
from onnxq.cli._given import guard_of
from onnxq.cli._options import FORCE_OPTION, MODEL


@click.command(short_help="Encode arrays without a model in a number format.")
@click.argument("file", type=MODEL)
@click.option(
    "--weights", "-w", required=True, metavar="FORMAT", help=f"A number format: {', '.join(formats.names())}."
)
@click.option(
    "--granularity",
    "-g",
    metavar="WORD",
    help="Which weights share a scale: tensor, channel (the first axis), or block32 (any size, along the last axis).  "
    "[default: the format's own]",
)
@click.option(
    "--algorithm",
    type=click.Choice(list(DATA_FREE)),
    default="rtn",
    show_default=True,
    help="How the codes are chosen; rtn: by the format's own rule, which for .gguf is ggml's to the bit, "
    "but for q2_k to q6_k.",
)
@click.option(
    "--levels",
    metavar="NUMBERS",
    help="For nf4, fp4 and nf4_dq: numbers to take in the place of its own, with commas between them, or a .npy file.",
)
@click.option("--output", "-o", type=MODEL, required=True, help="Where to write it: .gguf, .safetensors or .npz.")
@FORCE_OPTION
def encode(file: Path, **options: Any) -> None:
    """Encode the arrays of FILE (.npy, .npz or .safetensors) in a number format.

    Vectors and integers are kept as they are, unless there is nothing else. 'onnxq decode' makes floats of them again.
    """
    guard = guard_of(options)
    guard.reads(file, options["levels"])
    guard.writes(options["output"])
    rows = encode_arrays(
        open_arrays(file),
        options["output"],
        options["weights"],
        granularity=options["granularity"],
        algorithm=options["algorithm"],
        levels=None if options["levels"] is None else _levels(options["levels"]),
        replace=bool(options["force"]),
    )
    for row in rows:
        shape = "×".join(map(str, row.shape)) or "1"
        kept = row.format is None
        sqnr = "" if kept else f"  {row.sqnr:.1f} dB" if row.sqnr is not None else "  exact"
        say(f"{row.name}  {shape}  {'kept' if kept else row.format}  {row.bits:.2f} bits{sqnr}")
    say(f"{options['output']}: {options['output'].stat().st_size} bytes, codes by {options['algorithm']}")


def _levels(words: str) -> list[float]:
    """The numbers of `--levels`."""
    if words.endswith(".npy"):
        (table,) = open_arrays(words).values()
        return [float(level) for level in np.asarray(table).reshape(-1)]
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise click.UsageError(f"invalid --levels '{words}'; example: -1,-0.5,0,0.5,1") from None

"""`onnxq convert`: write a quantized model for another target, with the codes that it has."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from onnxq import targets
from onnxq.checkpoints.encode_arrays import SUFFIXES
from onnxq.cli import _tables, _written
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of, tell_moot
from onnxq.cli._options import ACCURACY_LEVEL_OPTION, FORCE_OPTION, MODEL, SHARD_OPTION, THREADS_OPTION
from onnxq.conversion.convert import convert as make
from onnxq.conversion.export_folder import KINDS, export_folder
from onnxq.conversion.export_weights import Row, export_weights
from onnxq.conversion.to_ort import to_ort
from onnxq.errors import BadRecipe, amount, one_line
from onnxq.job import Environment
from onnxq.output.data_writer import LAYER
from onnxq.runtime.own_files.model_files import ORT_SUFFIX

ORT = ORT_SUFFIX[1:]


@click.command(short_help="Write a quantized model for another target, same codes.")
@click.argument("model", type=MODEL)
@click.option(
    "--to",
    required=True,
    type=click.Choice((*targets.names(), ORT, *(suffix[1:] for suffix in SUFFIXES), *KINDS)),
    help="Where it will run; ort: onnxruntime's own format; or the file, or the checkpoint of another project, for its "
    "weights alone.",
)
@click.option("--output", "-o", type=MODEL, help="Where to write it.  [default: MODEL's name with that word in it]")
@ACCURACY_LEVEL_OPTION
@click.option("--no-check", is_flag=True, help="Do not run the saved file.")
@SHARD_OPTION
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def convert(model: Path, **options: Any) -> None:
    """Write MODEL, quantized by whatever tool, as another target computes it. Weights keep their codes.

    Weights that the target has no form for are rounded again; which ones, and how near they are, is said. For onnx,
    whose operators have no accuracy level, an option of onnxruntime's session decides on that. Into .gguf,
    .safetensors and .npz go the weights without the graph, and into a folder of compressed-tensors or torchao; a
    .gguf of a decoder like Llama runs in llama.cpp. Into .ort goes any model, optimized as onnxruntime does when it
    loads one.
    """
    refuse_folders(model)
    _require_parts(options["to"], options["shard_size"])
    if options["to"] == ORT:
        _to_ort(model, options)
        return
    if f".{options['to']}" in SUFFIXES or options["to"] in KINDS:
        tell_moot({"accuracy_level", "threads", "no_check"}, "weights are written without the graph")
        _export(model, options)
        return
    with Bars(console(stderr=True)) as bars:
        done = make(
            model,
            options["to"],
            options["output"],
            accuracy_level=options["accuracy_level"],
            check=not options["no_check"],
            environment=Environment(options["threads"], bars, guard_of(options), options["shard_size"]),
        )
    if options["as_json"]:
        _written.echo_json(done, plan=json.loads(done.plan.to_json()))
        _written.end(done.check)
        return
    count = len(done.kept)
    same = f"weights of {amount(count, 'node')} the same, bit for bit"
    table = [_tables.plan_table(done.plan), f"\n{same}"] if done.plan.choices else ["int8 islands, spelled otherwise"]
    _written.show(
        done,
        f"for {options['to']}",
        *table,
        *(one_line(f"rounded again: {node} ({why}), {sqnr:.1f} dB") for node, (why, sqnr) in done.again.items()),
    )
    _written.end(done.check)


def _require_parts(to: str, size: int | str | None) -> None:
    """
    Raises:
        BadRecipe: what is written is one file, or has no layers to cut it by.
    """
    if size is None or to in targets.names():
        return
    if to not in ("safetensors", *KINDS):
        raise BadRecipe(f"--shard-size is for files of ONNX and safetensors: .{to} is a single file")
    if size == LAYER:
        raise BadRecipe(f"--shard-size {LAYER} is for files of ONNX: say a size, e.g. 2GB")


def _to_ort(model: Path, options: dict[str, Any]) -> None:
    with Bars(console(stderr=True)) as bars:
        environment = Environment(options["threads"], bars, guard_of(options))
        done = to_ort(model, options["output"], check=not options["no_check"], environment=environment)
    if options["as_json"]:
        _written.echo_json(done)
    else:
        _written.show(done, "in onnxruntime's format", notes=done.notes)
    _written.end(done.check)


def _export(model: Path, options: dict[str, Any]) -> None:
    output, most = options["output"] or Path(f"{model.stem}.{options['to']}"), options["shard_size"]
    with Bars(console(stderr=True)) as bars:
        environment = Environment(options["threads"], bars, guard_of(options))
        if options["to"] in KINDS:
            done = export_folder(model, options["to"], output, shard_size=most, environment=environment)
        else:
            done = export_weights(model, output, shard_size=most, environment=environment)
    if options["as_json"]:
        click.echo(json.dumps([dataclasses.asdict(row) for row in done.rows], indent=1))
        return
    written, count = (output, f" in {len(done.files)} files" if len(done.files) > 1 else "")
    if count and not output.is_dir():  # the last one names the others, and none is called as was asked for
        written, count = done.files[-1], f" in {len(done.files) - 1} files beside it"
    tensors, size = amount(len(done.rows), "tensor"), sum(file.stat().st_size for file in done.files)
    out = console()
    out.print(f"{written}: {tensors}, {size} bytes{count}\n", style="bold")
    out.print(_rows_table(done.rows))
    for sentence in done.said:
        out.print(one_line(f"note: {sentence}"))


def _rows_table(rows: Sequence[Row]) -> Table:
    """What becomes of each tensor, and whether its numbers are those that the model has."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tensor", "shape", "format", "numbers"):
        table.add_column(column, overflow="fold")
    for row in rows:
        numbers = "the same" if row.sqnr is None else f"rounded again, {row.sqnr:.1f} dB"
        table.add_row(one_line(row.name), "×".join(map(str, row.shape)) or "1", row.format or "array", numbers)
    return table

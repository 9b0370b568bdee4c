"""`onnxq import-weights`: put the weights of a checkpoint of any kind into a model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from onnxq.checkpoints.import_weights import Imported, ImportOptions
from onnxq.checkpoints.import_weights import import_weights as put_in
from onnxq.checkpoints.matching.match import WAYS
from onnxq.cli import _tables, _written
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of
from onnxq.cli._options import (
    ACCURACY_LEVEL_OPTION,
    FORCE_OPTION,
    MODEL,
    SHARD_OPTION,
    TARGET_OPTION,
    THREADS_OPTION,
)
from onnxq.errors import amount, one_line
from onnxq.files import mirror
from onnxq.job import Environment


@click.command(short_help="Put the weights of another tool's checkpoint into a float model.")
@click.argument("files", nargs=-1, required=True, type=MODEL, metavar="[MODEL] CHECKPOINT")
@click.option(
    "--output", "-o", type=MODEL, help="Where to write it.  [default: the first file's name with the scheme in it]"
)
@TARGET_OPTION
@click.option(
    "--partial",
    is_flag=True,
    help="Leave out tensors that fit nowhere, and keep what gets nothing, instead of refusing the checkpoint.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="Do not read tensors of this name, or pattern of names (*, ?): MODEL has nothing of them. Repeatable.",
)
@click.option(
    "--group-size",
    type=click.IntRange(1),
    help="Of Linear4bit: inputs that share a scale; the last group of a row may be shorter.  [default: what CHECKPOINT "
    "says, or the power of two that gives so many scales]",
)
@click.option(
    "--match",
    type=click.Choice(WAYS),
    default=ImportOptions.match,
    show_default=True,
    help="How layers are found: by names, and where those differ by structure if their numbers are like the model's "
    "own (auto); by names alone; or by structure whatever the numbers (unchecked).",
)
@ACCURACY_LEVEL_OPTION
@click.option(
    "--add",
    multiple=True,
    metavar="LAYER=VALUE",
    help="Make a product of VALUE by LAYER, which the model does not have: a new output, called LAYER.",
)
@click.option("--no-check", is_flag=True, help="Do not run the saved file.")
@SHARD_OPTION
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def import_weights(files: tuple[Path, ...], **options: Any) -> None:
    """Put the weights of CHECKPOINT into the products and tables of the float MODEL, by name.

    CHECKPOINT is a .safetensors, .npz or .gguf file, or a folder with them and config.json: GPTQ, AWQ,
    compressed-tensors, bitsandbytes, HQQ, torchao, MLX, GGUF, Linear4bit, plain floats, or what onnxq wrote. Codes stay
    what they are wherever MODEL can hold them; what is rounded is listed.

    Without MODEL one is made, in which each layer is a product from an input to an output of its own.
    """
    refuse_folders(*files[:-1])
    if len(files) > 2:
        raise click.UsageError(f"{len(files)} files were given: a MODEL, which may be left out, and a CHECKPOINT")
    *model, checkpoint = files
    with Bars(console(stderr=True)) as bars:
        done = put_in(
            model[0] if model else None,
            checkpoint,
            options["output"],
            target=options["target"],
            options=ImportOptions(
                partial=options["partial"],
                without=options["without"],
                group=options["group_size"],
                accuracy_level=options["accuracy_level"],
                add=dict(map(_addition, options["add"])),
                match=options["match"],
            ),
            check=not options["no_check"],
            environment=Environment(options["threads"], bars, guard_of(options), options["shard_size"]),
        )
    if options["as_json"]:
        click.echo(json.dumps(_as_dict(done), indent=1))
        _written.end(done.check)
        return
    out = console()
    n = len(done.match.blocks)
    products = amount(n, "product")
    out.print(f"{done.output}: {products} from {checkpoint} for {done.plan.target}\n", style="bold")
    out.print(_tables.plan_table(done.plan))
    out.print()
    for word, names in (
        ("kept from the model", [*done.match.kept, *done.match.bare]),
        ("not in the model", done.match.surplus),
        ("do not fit", done.match.misfits),
        ("other tensors", done.match.unused),
        ("other constants", done.match.constants),
        ("squares that lie as [inputs, outputs]", done.match.turned),
    ):
        if names:
            out.print(one_line(f"{word}: {', '.join(names)}"))
    for node, why in done.match.proposed.items():
        out.print(one_line(f"found by structure: {node} is {done.match.prefixes[node]} ({why})"))
    for node, what in done.match.rounded.items():
        out.print(one_line(f"rounded: {node}: {what}"))
    for note in done.match.notes:
        out.print(note)
    out.print(_tables.import_table(done))
    _written.end(done.check)


def _addition(words: str) -> tuple[str, str]:
    """The layer and the value of `LAYER=VALUE`."""
    layer, is_pair, value = words.partition("=")
    if not is_pair or not layer or not value:
        raise click.UsageError(f"invalid --add '{words}'; example: lm_head=hidden_states")
    return layer, value


def _as_dict(done: Imported) -> dict[str, object]:
    return {
        "output": mirror.told(done.output),
        "target": done.plan.target,
        **dataclasses.asdict(done.match),
        "check": None if done.check is None else done.check.to_dict(),
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
    }

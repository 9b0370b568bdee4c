"""`onnxq lora`: low-rank adapters of quantized models: train them, use them, turn them into other files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxq.checking.metrics import WORDS as METRICS
from onnxq.cli import _written
from onnxq.cli._console import Bars, console, say
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import guard_of, sampling_of
from onnxq.cli._options import ACCURACY_LEVEL_OPTION, FORCE_OPTION, LOGITS_OPTION, MODEL, data_options
from onnxq.errors import amount, one_line
from onnxq.files import mirror
from onnxq.job import Environment
from onnxq.report.words import error

if TYPE_CHECKING:
    from onnxq.training.adapters.use import Written

#: Samples that are learnt from at most, unless told otherwise.
_LIMIT = 1 << 20
_OUTPUT = click.option(
    "--output",
    "-o",
    type=MODEL,
    required=True,
    help="Where to write it: NAME.onnx_adapter for onnxruntime, NAME.onnx for the model with it, a folder for PEFT.",
)
_MODEL_OUTPUT = click.option("--output", "-o", type=MODEL, required=True, help="Where to write it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_LORA_HELP = (
    "Products that get one, by a pattern of node names, and its rank, e.g. 'layers.*/q=16'; a rank alone is for all. "
    "The last that matches counts; 0: none. Repeatable."
)


@click.group(short_help="Train and use low-rank adapters of a quantized model.")
def lora() -> None:
    """Low-rank adapters beside the products of a quantized model, whose codes stay what they are (QLoRA).

    \b
    onnxq lora train model.nf4.onnx --data samples.npz --labels y --lora 8 -o mine.onnx_adapter
    onnxq lora base model.nf4.onnx -o base.onnx          takes any such adapter, run by run
    onnxq lora convert model.nf4.onnx PEFT_FOLDER -o theirs.onnx_adapter
    onnxq lora merge model.nf4.onnx mine.onnx_adapter -o merged.onnx
    """


@lora.command(short_help="Train an adapter.")
@click.argument("model", type=MODEL)
@_OUTPUT
@click.option("--lora", multiple=True, metavar="PATTERN=RANK", default=("8",), show_default=True, help=_LORA_HELP)
@data_options(_LIMIT)
@click.option("--labels", metavar="NAME", help="The array of the data with the right answers: classes, or numbers.")
@click.option("--teacher", type=MODEL, help="A model to be like, with the same inputs and outputs: the float one, say.")
@click.option(
    "--loss",
    metavar="MODULE:FUNCTION",
    help="Your own loss of the outputs (a dict of tensors), the labels and the inputs.",
)
@click.option(
    "--init",
    type=click.Choice(("zeros", "reconstruct")),
    default="zeros",
    show_default=True,
    help="What adapters begin as: nothing, or what best makes up for the codes of --teacher's weights.",
)
@click.option(
    "--held-back",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Samples that are judged by, not learnt from: a quarter at most.",
)
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True, help="Passes over the samples.")
@click.option("--steps", type=click.IntRange(1), help="At most so many batches.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Samples in a batch.")
@click.option("--rate", type=float, default=1e-3, show_default=True, help="The highest learning rate.")
@click.option("--patience", type=click.IntRange(1), default=4, show_default=True, help="Looks without gain, then stop.")
@click.option("--progress", type=MODEL, help="A .npz file that keeps how far training came, and from which it goes on.")
@LOGITS_OPTION
@FORCE_OPTION
@_JSON
def train(model: Path, **options: Any) -> None:
    """Train low-rank adapters beside the products of the quantized MODEL, on labels, or to be like another model.

    MODEL's matrices stay packed, and are unpacked a few rows at a time. What samples held back say decides which of
    the adapters on the way are kept. `--seed` draws the samples, their order and what adapters begin as.
    """
    refuse_folders(model)
    from onnxq.training import require_torch
    from onnxq.training.adapters.products import parse_pattern

    patterns = dict(map(parse_pattern, options["lora"]))
    require_torch()
    from onnxq.training.adapters.learning.fit import FitOptions
    from onnxq.training.adapters.learning.train import Task, train_adapter

    sampling = dataclasses.replace(sampling_of(options), held_back=options["held_back"])
    numbers = {name: options[name] for name in ("epochs", "steps", "batch", "rate", "patience")}
    with Bars(console(stderr=True)) as bars:
        done = train_adapter(
            model,
            options["output"],
            sampling,
            Task(
                patterns,
                options["labels"],
                options["teacher"],
                options["loss"],
                options["init"],
                tuple(options["logits"]),
            ),
            options=FitOptions(seed=options["seed"] or 0, **numbers),
            progress_file=options["progress"],
            environment=Environment(0, bars, guard_of(options)),
        )
    if options["as_json"]:
        click.echo(json.dumps(dataclasses.asdict(done) | {"output": mirror.told(done.output)}, indent=1))
        return
    say(f"{done.output}: {_of(done.ranks)}, {done.elements} numbers, {done.nbytes} bytes")
    say(f"packed   {done.packed} bytes of codes and scales stayed as they were")
    say(f"loss     {done.before:.4f} → {done.after:.4f} on samples held back; {done.saved:.4f} in onnxruntime")
    if done.idle:
        say(one_line(f"note: no gradient reached {', '.join(done.idle)}: nothing was learnt there"))
    if done.left_out:
        steps = amount(done.left_out, "step")
        say(f"note: {steps} changed nothing: the loss was no number, or no label of those samples counts")


@lora.command(short_help="Write a model that takes adapters run by run.")
@click.argument("model", type=MODEL)
@_MODEL_OUTPUT
@click.option("--lora", multiple=True, metavar="PATTERN", help="Products that take one.  [default: all]")
@FORCE_OPTION
@_JSON
def base(model: Path, **options: Any) -> None:
    """Write MODEL with two optional inputs beside each of its products.

    Without an adapter it computes what MODEL does; with `RunOptions.add_active_adapter` of onnxruntime, a run takes
    the matrices of an .onnx_adapter file, of any rank. One base serves any number of adapters.
    """
    refuse_folders(model)
    from onnxq.training.adapters.use import EVERYWHERE, make_base

    patterns = dict.fromkeys(options["lora"], 1) or EVERYWHERE
    with Bars(console(stderr=True)) as bars:
        done = make_base(model, options["output"], lora=patterns, environment=Environment(1, bars, guard_of(options)))
    products = amount(len(done.ranks), "product")
    _print(done, options, f"{done.output}: takes adapters of {products}, {done.nbytes} bytes")


@lora.command(short_help="Turn an adapter into another kind of file.")
@click.argument("model", type=MODEL)
@click.argument("adapter", type=MODEL)
@_OUTPUT
@FORCE_OPTION
@_JSON
def convert(model: Path, adapter: Path, **options: Any) -> None:
    """Write ADAPTER, for the quantized MODEL, as another kind of file: PEFT in, PEFT out.

    ADAPTER is an .onnx_adapter file, or a folder of PEFT with adapter_config.json and adapter_model.safetensors, whose
    modules are found in MODEL by their names, by the end of their names, or by what they do.
    """
    refuse_folders(model)
    from onnxq.training.adapters.use import convert_adapter

    with Bars(console(stderr=True)) as bars:
        done = convert_adapter(model, adapter, options["output"], environment=Environment(1, bars, guard_of(options)))
    _print(done, options, f"{done.output}: {_of(done.ranks)}, {done.nbytes} bytes")


@lora.command(short_help="Add an adapter to the weights and quantize those again.")
@click.argument("model", type=MODEL)
@click.argument("adapter", type=MODEL)
@_MODEL_OUTPUT
@click.option("--metric", type=click.Choice(tuple(METRICS)), help="Score both on --data: with it beside, and merged.")
@click.option("--labels", metavar="NAME", help="The array of the data with the right answers, for --metric.")
@data_options(_LIMIT)
@LOGITS_OPTION
@ACCURACY_LEVEL_OPTION
@FORCE_OPTION
@_JSON
def merge(model: Path, adapter: Path, **options: Any) -> None:
    """Write the quantized MODEL with ADAPTER in its weights, each in the format it has, and say what that loses.

    The result has no more products than MODEL, and what ADAPTER adds nothing to stays as it is. What 4 bits cannot
    tell apart of what ADAPTER adds is lost: beside the weights (`onnxq lora convert … -o NAME.onnx`) nothing is.
    """
    refuse_folders(model)
    from onnxq.training.adapters.merge import merge_adapter

    with Bars(console(stderr=True)) as bars:
        done = merge_adapter(
            model,
            adapter,
            options["output"],
            metric=options["metric"],
            logits=tuple(options["logits"]),
            data=sampling_of(options),
            accuracy_level=options["accuracy_level"],
            environment=Environment(1, bars, guard_of(options)),
        )
    if options["as_json"]:
        _written.echo_json(done)
        _written.end(done.check)
        return
    n = len(done.losses)
    say(f"{done.output}: {amount(n, 'weight')} merged, {done.nbytes} bytes")
    for name, loss in done.losses.items():
        told = "nothing lost" if loss is None else f"{loss.weight:.1f} dB, the adapter {loss.adapter:.1f} dB"
        was, now = done.formats.get(name, ("", ""))
        say(one_line(f"{name}  {told}{f'; {now} now, {was} before' if now else ''}"))
    for name in done.unchanged:
        say(one_line(f"{name}  unchanged, the adapter adds nothing"))
    if done.check is not None and done.check.is_known:
        say(f"error    {error(done.check)} to the adapter beside the weights, on {done.check.inputs}")
    for note in () if done.check is None else done.check.further_notes:
        say(one_line(f"note: {note}"))
    if done.score is not None:
        say(f"{done.score.metric}  {done.score.in_float:.4f} beside, {done.score.quantized:.4f} merged")
    _written.end(done.check)


def _of(ranks: dict[str, int]) -> str:
    """How many products, and of what ranks."""
    different: Sequence[int] = sorted(set(ranks.values()))
    words = f"rank {different[0]}" if len(different) == 1 else f"ranks {different[0]} to {different[-1]}"
    return f"{amount(len(ranks), 'product')}, {words}"


def _print(done: Written, options: dict[str, Any], line: str) -> None:
    if options["as_json"]:
        click.echo(json.dumps(dataclasses.asdict(done) | {"output": mirror.told(done.output)}, indent=1))
        return
    say(line)
    for name, (module, why) in done.proposed.items():
        say(one_line(f"found by structure: {name} is {module} ({why})"))

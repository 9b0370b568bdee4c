"""`onnxq train`: quantize a model and train it with the quantization in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq.cli import _tables, _written
from onnxq.cli._console import Bars, console
from onnxq.cli._folders import refuse_folders
from onnxq.cli._given import effort_of, guard_of, plan_of, preprocessing_of, recipe_of
from onnxq.cli._options import (
    CALIBRATION_OPTION,
    DATA_OPTIONS,
    EFFORT_OPTIONS,
    FORCE_OPTION,
    LOGITS_OPTION,
    MODEL,
    OUTPUT_OPTION,
    PLAN_OPTIONS,
    THREADS_OPTION,
    options,
)
from onnxq.cli._types import Real, Size
from onnxq.errors import BadRecipe
from onnxq.training import require_torch
from onnxq.training.settings import LEARNED, SCHEDULES, Settings

#: What the options stand for where they are not given.
_DEFAULTS = Settings()
#: Options that `Settings` has by the same name.
_SETTINGS = [name for name in vars(_DEFAULTS) if name not in ("learn", "report", "memory", "checkpoint_every")]
_HELP = """Quantize MODEL and train it with the quantization in place, with no more than samples of its inputs.

It learns to give what the float model gives (KL divergence of outputs that are scores of classes, else the mean
square), or by --labels or --loss. It starts from what 'onnxq quantize' would write, and what is written is best on
samples that are held back. Needs torch: pip install 'onnxq[train]'.

\b
What can be learned (--learn):
""" + "\n".join(f"{word:9} {meaning}" for word, meaning in LEARNED.items())

TRAINING_OPTIONS = options(
    click.option(
        "--learn",
        default=",".join(_DEFAULTS.learn),
        show_default=True,
        metavar="WORDS",
        help=f"What is learned: some of {', '.join(LEARNED)}, with commas between them.",
    ),
    click.option("--steps", type=int, default=_DEFAULTS.steps, show_default=True, help="Steps, end to end."),
    click.option(
        "--block-steps",
        type=int,
        default=_DEFAULTS.block_steps,
        show_default=True,
        help="Steps for each block before that, by what the float block gives.",
    ),
    click.option("--batch", type=int, default=_DEFAULTS.batch, show_default=True, help="Samples a step."),
    click.option(
        "--rate",
        type=float,
        default=_DEFAULTS.rate,
        show_default=True,
        help="Learning rate: of codes in steps between codes, of scales, ranges and floats in tenths of themselves.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(SCHEDULES),
        default=_DEFAULTS.schedule,
        show_default=True,
        help="How the rate goes down.",
    ),
    click.option(
        "--warmup",
        type=Real(0, 1),
        default=_DEFAULTS.warmup,
        show_default=True,
        help="Share of the steps in which the rate first goes up.",
    ),
    click.option(
        "--clip",
        type=Real(0),
        default=_DEFAULTS.clip,
        show_default=True,
        help="The longest gradient; 0: any.",
    ),
    click.option("--samples", type=click.IntRange(1), help="Samples to train on at most.  [default: all]"),
    click.option(
        "--held-back",
        type=int,
        default=_DEFAULTS.held_back,
        show_default=True,
        help="Samples, at most a quarter, that are not trained on: they say which step was best, and when to stop.",
    ),
    click.option(
        "--evaluate-every",
        type=int,
        default=_DEFAULTS.evaluate_every,
        show_default=True,
        help="Steps between two looks at them.",
    ),
    click.option(
        "--patience",
        type=click.IntRange(1),
        default=_DEFAULTS.patience,
        show_default=True,
        help="Looks without a better loss after which training ends.",
    ),
    click.option(
        "--loss",
        metavar="MODULE:FUNCTION",
        help="Your own loss: a function of the outputs by name, the labels, and the inputs; tensors of torch.",
    ),
    click.option("--labels", metavar="NAME", help="The array in --data, beside the inputs, with the right answers."),
    click.option(
        "--temperature", type=float, default=_DEFAULTS.temperature, show_default=True, help="Of distilled classes."
    ),
    click.option("--checkpoint", type=MODEL, help="Where progress is kept.  [default: the output with .training]"),
    click.option(
        "--checkpoint-steps",
        type=click.IntRange(1),
        default=_DEFAULTS.checkpoint_every,
        show_default=True,
        help="Steps between two savings of it.",
    ),
    click.option(
        "--pieces",
        type=click.IntRange(1),
        default=_DEFAULTS.pieces,
        show_default=True,
        help="Parts of the graph whose values are computed again for gradients: less memory, a third more time.",
    ),
    click.option("--memory", type=Size(), help="What training may take.  [default: what is free]"),
    click.option("--minutes", type=Real(0), help="End after so long, with what is best then."),
    click.option("--device", default="", help="Of torch.  [default: a GPU where there is one]"),
    click.option("--bfloat16", is_flag=True, help="Multiply in bfloat16: faster where the processor does that."),
    click.option("--losses", type=MODEL, help="Write losses by step to this file, as JSON."),
)


@click.command(help=_HELP, short_help="Train a model with the quantization in place.")
@click.argument("model", type=MODEL)
@OUTPUT_OPTION
@PLAN_OPTIONS
@DATA_OPTIONS
@TRAINING_OPTIONS
@CALIBRATION_OPTION
@EFFORT_OPTIONS
@LOGITS_OPTION
@click.option("--plan", "plan_file", type=MODEL, help="Carry out a plan that 'onnxq plan -o' wrote, as it is.")
@click.option("--no-check", is_flag=True, help="Do not run the saved file.")
@THREADS_OPTION
@FORCE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--report", type=MODEL, help="Write the result as JSON to this file.")
def train(model: Path, **options: Any) -> None:
    refuse_folders(model)
    require_torch()
    from onnxq.training.run import train as run  # torch takes seconds

    if not options["data"]:
        raise BadRecipe("training needs samples: give --data")
    guard, recipe = guard_of(options), recipe_of(options)
    settings = settings_of(options)
    with Bars(console(stderr=True)) as bars:
        result = run(
            model,
            options["output"],
            recipe,
            data=options["data"],
            settings=settings,
            guard=guard,
            progress=bars,
            target=options["target"],
            preprocessing=preprocessing_of(options),
            limit=options["limit"],
            seed=options["seed"],
            effort=effort_of(options),
            plan=plan_of(options, recipe),
            check=not options["no_check"],
            threads=options["threads"],
            logits=options["logits"],
        )
    if options["report"]:
        guard.write_text(options["report"], result.to_json())
    if options["as_json"]:
        click.echo(result.to_json())
    else:
        out = console()
        out.print(f"{result.output}: {result.plan.scheme} for {result.plan.target}, trained\n", style="bold")
        out.print(_tables.plan_table(result.plan))
        out.print()
        out.print(_tables.result_table(result))
    _written.end_unverified(result.unverified())


def settings_of(options: dict[str, Any]) -> Settings:
    """What the options say of how to train."""
    given = {name: options[name] for name in _SETTINGS if options.get(name) is not None}
    words = tuple(word.strip() for word in options["learn"].split(",") if word.strip())
    more = {"report": options["losses"], "memory": options["memory"], "checkpoint_every": options["checkpoint_steps"]}
    return Settings(**given, **more, learn=words)

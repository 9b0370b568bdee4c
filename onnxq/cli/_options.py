"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from onnxq import algorithms, formats, targets
from onnxq.calibration import pick_method
from onnxq.checking.metrics import WORDS as METRICS
from onnxq.cli._types import Interval, Place, Samples, ShardSize, Size
from onnxq.recipe import GRANULARITIES, Recipe
from onnxq.runtime.session import THREADS
from onnxq.samples.sampling import LIMIT
from onnxq.samples.texts.text import LENGTHS
from onnxq.schemes import SCHEMES
from onnxq.searching.options import WORDS as FORMAT_WORDS

#: Options for files to write; `--ranges` and `--evidence` may be both. What any other one names is read.
WRITTEN = {"output", "losses", "checkpoint", "report", "trace", "ranges", "evidence", "save_profile", "plot"}
WRITTEN |= {"html", "json_file"}
MODEL = Place(WRITTEN)
DEFAULTS = Recipe()


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def data_options(limit: int) -> Callable[[Any], Any]:
    """Where samples come from, at most `limit` of them unless told otherwise."""
    return options(
        click.option(
            "--data",
            type=Samples(),
            metavar="WHERE",
            help="Samples of its inputs: .npz, .npy, .txt, .jsonl, .csv, .parquet, .arrow, images, sounds, a folder of "
            "one kind of those, or module:function yielding dicts.",
        ),
        click.option(
            "--preprocess",
            metavar="WORDS",
            help="How images or sounds become inputs, e.g. 'size=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225' "
            "or 'mel=80 rate=16000', or a preprocessor_config.json.  [default: the one beside MODEL]",
        ),
        click.option(
            "--tokenizer",
            type=MODEL,
            help="A tokenizer.json, or its folder, by which texts become inputs.  [default: the one beside MODEL]",
        ),
        click.option(
            "--length",
            "lengths",
            metavar="TOKENS",
            help="Tokens of the samples of a text, a number or a mix such as 16,128.  [default: "
            f"{','.join(map(str, LENGTHS))}]",
        ),
        click.option(
            "--limit",
            type=click.IntRange(1),
            default=limit,
            show_default=True,
            help="Use at most so many samples.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0),
            help="Draw the samples of --limit at random instead of the first, of tables and lines of JSON "
            "evenly spread ones.",
        ),
    )


DATA_OPTIONS = data_options(LIMIT)
FORM_OPTIONS = options(
    click.option(
        "--weights",
        "-w",
        multiple=True,
        metavar="WORD",
        help=f"A number format: {', '.join(formats.names())}. Repeatable.  [default: all]",
    ),
    click.option(
        "--granularity",
        "-g",
        multiple=True,
        metavar="WORD",
        help="Which weights share a scale: tensor, channel, or block32 (any size). Repeatable.  [default: each "
        "format's own; of a single format, all]",
    ),
)
#: Threads of one operator; onnxruntime starts as many as it is told.
THREADS_TYPE = click.IntRange(0, 1024)
THREADS_OPTION = click.option(
    "--threads",
    type=THREADS_TYPE,
    default=THREADS,
    show_default=True,
    help="Threads for timing; 0: onnxruntime's default.",
)
ACCURACY_LEVEL_OPTION = click.option(
    "--accuracy-level",
    type=click.IntRange(0, 4),
    default=Recipe.accuracy_level,
    show_default=True,
    help="Of products: 4 rounds activations to int8 inside and is fast, 0 computes in float.",
)
LOGITS_OPTION = click.option(
    "--logits",
    multiple=True,
    metavar="OUTPUT",
    help="An output of scores of classes, of which decisions are compared; none: there are none. Repeatable."
    "  [default: found in the graph]",
)
METRIC_OPTIONS = options(
    click.option(
        "--metric",
        metavar="WORD",
        help=f"A score on labelled --data: {', '.join(METRICS)} (kld needs no labels).",
    ),
    click.option("--labels", metavar="NAME", help="The array in --data, beside the inputs, with the right answers."),
    LOGITS_OPTION,
)
FORMATS_OPTION = click.option(
    "--formats",
    multiple=True,
    metavar="WORD",
    help="What a search chooses from: a number format, perhaps with a block size, an algorithm and a rank "
    "(uint4/64+gptq+rank8), or a scheme such as w8a8. "
    f"Repeatable.  [default: those of {', '.join(FORMAT_WORDS)} that the target has]",
)
CALIBRATION_OPTION = options(
    click.option(
        "--calibration",
        type=click.Choice(pick_method.names()),
        help="How activation ranges are found; auto: by the method with the least error at the model's outputs."
        f"  [default: {DEFAULTS.calibration}]",
    ),
    click.option(
        "--percentile",
        metavar="PERCENT",
        help="Of --calibration percentile: the share of the values inside the range as seen from each end, or two for "
        "the low and the high end, e.g. 99.9,99.99.  [default: 99.999]",
    ),
    click.option(
        "--momentum",
        metavar="SHARE",
        help="Of --calibration moving-average: what a new sample weighs against all before.  [default: 0.1]",
    ),
    click.option(
        "--bins",
        metavar="N",
        help="Of --calibration percentile, entropy or mse: bins of the histogram at most.  [default: 4096]",
    ),
)
EFFORT_OPTIONS = options(
    click.option(
        "--jobs", type=click.IntRange(1, 1024), default=1, help="Calibrate in so many processes on this machine."
    ),
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Do what can be shared on the workers of a Dask cluster (docs/scale.md): tcp://host:8786, tls://…, "
        "local:4 for workers here, dask for what Dask's configuration says, or module:Class, as of dask-jobqueue.",
    ),
    click.option(
        "--max-memory",
        type=Size(),
        help="What observing activations may take besides the model's weights, e.g. 200MB; where data choose codes, "
        "larger models are run in pieces, and only a piece's weights are in memory. Where it is too little for all "
        "activations, there are several passes over the data.  [default: 512MB]",
    ),
    click.option(
        "--checkpoint-every",
        type=Interval(),
        help="Save progress after so many samples, or seconds (e.g. 60s), to go on from after an interruption."
        "  [default: 30s]",
    ),
)
TARGET_OPTION = click.option(
    "--target",
    "-t",
    type=click.Choice(targets.names()),
    default="ort-cpu",
    show_default=True,
    help="Where the model will run.",
)
SEARCH_OPTIONS = options(
    click.option(
        "--keep",
        multiple=True,
        metavar="PATTERN",
        help="Keep nodes of this name in float, as in 'quantize'. Repeatable.",
    ),
    click.option(
        "--set", "sets", multiple=True, metavar="PATTERN=SCHEME", help="A scheme for nodes of this name. Repeatable."
    ),
)
PLAN_OPTIONS = options(
    click.option(
        "--scheme",
        "-s",
        type=click.Choice(list(SCHEMES)),
        help=f"What to make of the weights and activations.  [default: {DEFAULTS.scheme}]",
    ),
    click.option(
        "--weights",
        "-w",
        metavar="FORMAT",
        help="In the place of a scheme: a number format for the weights, activations in float. "
        f"One of {', '.join(formats.names())}.",
    ),
    TARGET_OPTION,
    click.option(
        "--recipe", type=MODEL, help="A TOML file with these options and [[rule]] tables; options given here win."
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="PATTERN",
        help="Keep nodes of this name in float: a glob, or 're:' and a regular expression. Repeatable.",
    ),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="PATTERN=SCHEME",
        help="Another scheme for nodes of this name, e.g. 'layers.0/*=w8a16', perhaps with an algorithm, "
        "'layers.0/*=int3+gptq', and a rank of what is added to make up for it, 'int3+gptq+rank16'. Repeatable.",
    ),
    click.option(
        "--block-size",
        "--block",
        type=int,
        help="Weights that share a scale, in formats of blocks.  [default: the format's own, mostly 32]",
    ),
    click.option(
        "--granularity",
        "-g",
        type=click.Choice(GRANULARITIES),
        help="Which weights share a scale: all of a tensor, those of an output channel, or blocks of --block-size."
        "  [default: what the scheme or format has]",
    ),
    click.option(
        "--symmetric/--affine",
        default=None,
        help="Integer weights of a scheme without zero points, or with them.  [default: what the scheme has]",
    ),
    click.option(
        "--algorithm",
        type=click.Choice(algorithms.WORDS),
        help="How codes are chosen; rtn: by each format's own rule, as its other implementations do; gptq, gptaq, "
        "adaround, importance: by --data.  [default: what measured best for each weight]",
    ),
    click.option(
        "--balance/--no-balance",
        default=None,
        help="With --data, scale channels between layers where that serves the quantized ones, as SmoothQuant and AWQ "
        "do; outputs in float stay.  [default: balance]",
    ),
    click.option(
        "--reduce-range",
        is_flag=True,
        default=None,
        help="7-bit weights for w8a8: for processors without VNNI, whose 8-bit products saturate.",
    ),
    click.option(
        "--requantize",
        is_flag=True,
        default=None,
        help="Take a model that is quantized already, and quantize what is still in float.",
    ),
)


OUTPUT_OPTION = click.option(
    "--output",
    "-o",
    type=MODEL,
    help="Where to write it.  [default: MODEL's name with the scheme in it, in this folder]",
)
FORCE_OPTION = click.option("--force", "-f", is_flag=True, help="Replace files that exist and are not read.")

SHARD_OPTION = click.option(
    "--shard-size",
    type=ShardSize(),
    help="Put weights into files beside the model of at most so many bytes each, e.g. 2GB, or into one for each layer: "
    "layer.  [default: one file, of a model of over 256 MB]",
)

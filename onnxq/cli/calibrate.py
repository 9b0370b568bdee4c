"""`onnxq calibrate`: find activation ranges."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxq.calibration import pick_method, resume
from onnxq.calibration.find_ranges import observe, ranges_of, remembering
from onnxq.calibration.gather_evidence import of_all_layers
from onnxq.calibration.observations import Observations, load_with_method, merge, to_json
from onnxq.calibration.shards import calibration_samples
from onnxq.cli._console import Bars, console, say
from onnxq.cli._given import effort_of, guard_of, recipe_of, sampling_of, tell_moot
from onnxq.cli._options import CALIBRATION_OPTION, DATA_OPTIONS, EFFORT_OPTIONS, FORCE_OPTION, MODEL, PLAN_OPTIONS
from onnxq.cli._types import Shard
from onnxq.errors import BadData, BadRecipe, NothingToDo, amount, one_line
from onnxq.files import staging
from onnxq.files.guard import Guard
from onnxq.job import Environment, Job, open_job
from onnxq.planning.scales import values_to_observe
from onnxq.summaries.evidence_parts import merge as merge_parts
from onnxq.summaries.ranges import Ranges

#: Options that merging goes by.
_OF_A_MERGE = {"output", "evidence", "force", "is_merge", "recipe", "calibration", "percentile", "momentum", "bins"}


@click.command(short_help="Find activation ranges, or what else data say, on sample data.")
@click.argument("files", nargs=-1, required=True, type=MODEL, metavar="MODEL")
@click.option("--output", "-o", type=MODEL, help="Where to write the ranges.")
@click.option(
    "--evidence",
    type=MODEL,
    help="Where to write what data say of layers, by which codes of few bits are chosen: an .npz for 'quantize "
    "--evidence'.",
)
@PLAN_OPTIONS
@DATA_OPTIONS
@CALIBRATION_OPTION
@EFFORT_OPTIONS
@click.option(
    "--shard", type=Shard(), help="Observe only the I-th of N parts of the samples, on this machine of several."
)
@FORCE_OPTION
@click.option("--merge", "is_merge", is_flag=True, help="Merge the files of all shards, given instead of MODEL.")
def calibrate(files: tuple[Path, ...], **options: Any) -> None:
    """Find the activation ranges of MODEL on --data, for 'quantize --ranges'.

    \b
    onnxq calibrate model.onnx --data images/ -o model.ranges
    onnxq calibrate model.onnx --data images/ --shard 1/4 -o part1.ranges     and so on, anywhere
    onnxq calibrate --merge part*.ranges -o model.ranges                      the same as in one run
    onnxq calibrate model.onnx --data texts.jsonl --evidence model.npz        for 'quantize --evidence', without data

    Progress is saved beside the output; after an interruption the same command goes on from there.
    """
    guard, output, evidence = guard_of(options), options["output"], options["evidence"]
    if (output is None) == (evidence is None):
        what = "ranges of activations by -o, or evidence of layers by --evidence"
        raise BadRecipe(f"name what to write: {what}{'' if output is None else '; both take a run of their own'}")
    guard.writes(*((output, "-o") if evidence is None else (evidence, "--evidence")))
    if options["is_merge"]:
        tell_moot(options.keys() - _OF_A_MERGE, "files of shards are merged as they are")
        if evidence is not None:
            _merge_evidence(files, evidence, guard)
            return
        _merge(files, options | {"calibration": recipe_of(options).calibration}, guard)
        return
    if len(files) > 1:
        raise BadRecipe(f"one model at a time, not {len(files)}; --merge takes several files of ranges")
    if not options["data"]:
        raise BadData("what is looked for is found by running the model on samples: give --data")
    (model,) = files
    shard = options["shard"]
    if shard is not None and options["jobs"] > 1:
        raise BadRecipe("a shard is observed by one process: give --shard or --jobs")
    if options["cluster"] and (shard is not None or evidence is not None):
        raise BadRecipe("workers find ranges of all samples: leave out --shard and --evidence, or --cluster")
    if evidence is not None:
        _gather(model, options, guard)
        return
    with Bars(console(stderr=True)) as bars:
        environment = Environment(progress=bars, guard=guard)
        job = open_job(model, recipe_of(options), options["target"], sampling_of(options), environment)
        effort, partial = effort_of(options), Path(f"{options['output']}.partial")
        if names := values_to_observe(job.model, job.plan):
            seen = observe(job, names, calibration_samples(job), effort, partial, shard)
            found = ranges_of(job, seen) if shard is None else seen.ranges(_of_shard(job.recipe.calibration))
            seen = remembering(job, seen, found) if shard is None else seen
            job.tell_gaps()
    if not names:
        raise NothingToDo(f"'{model}': {job.plan.scheme} needs no ranges of activations")
    _write(options["output"], found, seen, guard)
    _say_which(job)
    resume.remove(partial)


def _gather(model: Path, options: dict[str, Any], guard: Guard) -> None:
    if options["jobs"] > 1:
        raise BadRecipe("evidence is gathered by one process, and any number of machines: leave out --jobs")
    recipe = recipe_of(options)
    recipe = dataclasses.replace(recipe, scheme="w4a16") if recipe.scheme == "auto" else recipe
    with Bars(console(stderr=True)) as bars:
        environment = Environment(progress=bars, guard=guard)
        job = open_job(model, recipe, options["target"], sampling_of(options), environment)
        index = of_all_layers(job, effort_of(options), options["evidence"], options["shard"])
        job.tell_gaps()
    say(f"{options['evidence']}: what data say of the inputs of {amount(len(index.inputs), 'layer')}")
    _say_which(job)


def _say_which(job: Job) -> None:
    """Which of the samples were used, where that is not as usual."""
    if job.data is not None and job.data.note:
        say(one_line(f"note: {job.data.note}"))


def _merge_evidence(files: tuple[Path, ...], output: Path, guard: Guard) -> None:
    guard.reads(*files)
    with staging.whole(output, replace=guard.force) as staged:
        index = merge_parts(files, staged)
    say(f"{output}: what data say of the inputs of {amount(len(index.inputs), 'layer')}")


def _merge(files: tuple[Path, ...], options: dict[str, Any], guard: Guard) -> None:
    parts, methods = [], set()
    for file in files:
        method, seen = load_with_method(file)
        if seen is None:
            why = "without the observations they come from, so it cannot be merged"
            raise BadRecipe(f"'{file}' holds ranges {why}; calibrate again with --shard")
        parts.append((str(file), seen))
        methods.add(method)
    whole = merge(parts)
    method = options["calibration"]
    if method == pick_method.AUTO:  # what all shards were made by, else what they have in common
        (method,) = methods if len(methods) == 1 else (pick_method.DEFAULT if whole.has_histograms else "minmax",)
    _write(options["output"], whole.ranges(method), whole, guard)


def _of_shard(method: str) -> str:
    """Which method is best is not told by a part of the data; 'quantize' will choose."""
    return pick_method.DEFAULT if method == pick_method.AUTO else method


def _write(output: Path, found: Ranges, seen: Observations, guard: Guard) -> None:
    guard.write_text(output, to_json(found, seen))
    say(f"{output}: {amount(len(found.values), 'range')} by {found.method}, {len(found.problems)} without")
    for name, note in (*found.problems.items(), *found.notes.items()):
        say(f"  {one_line(f'{name}: {note}')}")

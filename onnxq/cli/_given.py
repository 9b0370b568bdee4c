"""What is made of the options that several commands share."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import click

from onnxq import formats
from onnxq.boundary import warn
from onnxq.calibration import pick_method
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.resume import EVERY
from onnxq.cli._options import WRITTEN
from onnxq.errors import BadRecipe, UnusedOption, amount
from onnxq.files.guard import Guard
from onnxq.plan import Plan, load_plan
from onnxq.recipe import KEEP, Recipe, Rule, load_recipe, parse_set
from onnxq.runtime import native
from onnxq.runtime.profile import MachineProfile, load_profile, new_profile
from onnxq.samples.reading import Reading, reading_of
from onnxq.samples.sampling import Sampling
from onnxq.searching.options import SCHEME

#: Options for patterns and formats, which may be spelled like some file.
WORDS = {"keep", "sets", "weights", "granularity", "makers", "sizes", "budget", "at"}
WORDS |= {"formats", "logits", "metric", "labels", "ignore", "cluster", "learn", "loss", "device"}


def guard_of(options: dict[str, Any], *, seeds_weights: bool = False) -> Guard:
    """What knows every file that the command line names, and has checked its report; options that have no effect
    without data are told.

    Args:
        seeds_weights: `--seed` has one.
    """
    guard = Guard(bool(options.get("force")))
    context = click.get_current_context()
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name not in WRITTEN | WORDS and not isinstance(option.type, click.Choice):
            guard.reads(*(word for each in (value if isinstance(value, tuple) else (value,)) for word in _paths(each)))
    if options.get("report"):
        guard.writes(options["report"], "--report")
    threads = options.get("threads") or 0
    threads = max(threads) if isinstance(threads, tuple) else threads
    if threads > MOST_THREADS_PER_CORE * (cores := native.cores()):
        warn(f"{threads} threads on {amount(cores, 'core')} wait for each other: runs take many times as long")
    if "data" in options and not options["data"]:
        tell_moot(_OF_DATA - {"seed"} if seeds_weights else _OF_DATA, "no --data is given")
    return guard


def given(names: Container[str]) -> Iterator[str]:
    """Of options of the command by their parameters' names, as the command line spells them, those that stand there."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is click.core.ParameterSource.COMMANDLINE and option.name in names:
            yield option.opts[0]


def tell_moot(names: Container[str], why: str) -> None:
    """A sentence for each of these options that was given."""
    for option in given(names):
        warn(f"{option} changes nothing: {why}", UnusedOption)


def plan_of(options: dict[str, Any], recipe: Recipe) -> Plan | None:
    """The plan of `--plan`; what is given beside it and has no effect is told."""
    if not options["plan_file"]:
        return None
    plan, why = load_plan(options["plan_file"]), "the plan says what becomes of each node"
    is_its_own = plan.scheme in (recipe.scheme, SCHEME)  # which scheme a search is in the place of is not in its plan
    tell_moot(_OF_A_PLAN if is_its_own else _OF_A_PLAN | {"scheme", "weights"}, why)
    return plan


def _paths(value: object) -> list[str | Path]:
    """What may be a path: the value, or words in it like `key=path`."""
    if not isinstance(value, str):
        return [value] if isinstance(value, Path) else []
    return [value, *(word.partition("=")[2] for word in value.split() if "=" in word)]


def recipe_of(options: dict[str, Any]) -> Recipe:
    """The recipe file, if there is one, with the options given on the command line laid over it."""
    base = load_recipe(options["recipe"]) if options.get("recipe") else Recipe()
    names = {field.name for field in dataclasses.fields(Recipe)}
    if options.get("weights") is not None:
        if options.get("scheme") is not None:
            raise BadRecipe("--scheme and --weights exclude each other: --weights alone leaves activations in float")
        formats.get(options["weights"])
        options = options | {"scheme": options["weights"]}
    if (method := _calibration_of(options)) is not None:
        options = options | {"calibration": method}
    given = {key: value for key, value in options.items() if key in names and value is not None}
    rules = [Rule(KEEP, pattern) for pattern in options["keep"]] + [parse_set(text) for text in options["sets"]]
    return dataclasses.replace(base, **given, rules=(*base.rules, *rules))


def _calibration_of(options: dict[str, Any]) -> str | None:
    """The method with its parameters; None if neither was given."""
    method: str | None = options.get("calibration")
    for name, word in (("percentile", "percentile"), ("momentum", "moving-average")):
        if options.get(name) is not None:
            if method not in (None, word):
                raise BadRecipe(f"--{name} belongs to --calibration {word}, not {method}")
            method = f"{word}:{options[name]}"
    if options.get("bins") is not None:
        if method in (None, pick_method.AUTO):
            raise BadRecipe("--bins goes with one --calibration method: percentile, entropy or mse")
        method = f"{method}@{options['bins']}"
    return method


def effort_of(options: dict[str, Any]) -> Effort:
    """What calibration may spend."""
    return Effort(options["max_memory"], options["jobs"], options["checkpoint_every"] or EVERY, options["cluster"])


def profile_of(options: dict[str, Any], guard: Guard) -> MachineProfile:
    """The times to decide by: of `--profile`, or those that will be measured. The guard is told where they go."""
    if options["save_profile"]:
        guard.writes(options["save_profile"], "--save-profile")
    if options["profile"]:
        return load_profile(options["profile"], options["threads"])
    return new_profile(options["threads"])


#: With more of them, onnxruntime's threads mostly wait.
MOST_THREADS_PER_CORE = 8
#: Options that say which samples are used and what running the model on them may take.
_OF_DATA = {"limit", "seed", "jobs", "max_memory", "checkpoint_every", "labels", "balance"}
#: Options that a plan answers, but for its scheme.
_OF_A_PLAN = {"keep", "sets", "granularity", "symmetric", "block_size", "prefer", "keep_slow"}
#: Options that may stand beside `--like`: none that the old model answers.
_BESIDE_LIKE = {
    *("model", "like", "output", "force", "threads", "as_json", "report", "html", "trace", "ranges", "evidence"),
    *("strict", "data", "preprocess", "tokenizer", "lengths", "limit", "seed", "jobs", "max_memory"),
    *("checkpoint_every", "cluster"),
}


def refuse_options_beside_like() -> None:
    """
    Raises:
        BadRecipe: something was asked for that `--like` says already.
    """
    every = {option.name or "" for option in click.get_current_context().command.params}
    for option in given(every - _BESIDE_LIKE):
        raise BadRecipe(f"{option} cannot go with --like, which takes it from the old model; leave it out")


def preprocessing_of(options: dict[str, Any]) -> Reading:
    """How `--preprocess`, `--tokenizer` and `--length` have samples read."""
    return reading_of(options["preprocess"] or None, options["tokenizer"], options["lengths"])


def sampling_of(options: dict[str, Any]) -> Sampling:
    """Which samples the options of `data_options` ask for."""
    labels = options.get("labels")
    return Sampling(options["data"], preprocessing_of(options), options["limit"], options["seed"], labels=labels)

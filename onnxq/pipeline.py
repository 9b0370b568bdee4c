"""The whole story: `quantize()`, from a float model on disk to a checked quantized one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnxq.boundary import bounded
from onnxq.calibration.calibrate import hash_model
from onnxq.calibration.find_ranges import Effort, find_ranges
from onnxq.calibration.lengths import LOOKED_AT, fit_ranges
from onnxq.checking.judging import trials_for
from onnxq.checking.models import Check, check_models, check_nodes
from onnxq.checking.verdict import misses_floor, require_quality, stricter, why_slow, without_library
from onnxq.encoding import lazy
from onnxq.errors import BadModel, NothingToDo
from onnxq.files.guard import Guard
from onnxq.job import LIMIT, Job, open_job
from onnxq.output import write as save
from onnxq.output.copy_model import copy_model
from onnxq.plan import COMPUTING, Method, Plan, in_float
from onnxq.planning.check_plan import require_possible
from onnxq.planning.outliers import without_outliers
from onnxq.planning.scales import values_to_observe, without_unobserved
from onnxq.planning.shared_weights import reconciled
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.runtime.session import THREADS, Session
from onnxq.samples.reading import How, reading_of
from onnxq.samples.source import DataSource
from onnxq.samples.trials import GIVEN, Trials
from onnxq.summaries.ranges import NO_RANGES, Ranges
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.tune import tune
from onnxq.version import __version__

#: Float models larger than this are not run whole unless calibration runs them anyway.
WHOLE_MODEL_BYTES = 1 << 30
#: The quantized file may be this much slower than float in the final timing before its kernels go back to float.
SLOWER = 1.05
#: Times that a plan is tuned anew because its file misses the floor that the user named.
RETRIES = 2


@dataclass(frozen=True)
class Result:
    """What `quantize` did.

    Attributes:
        bytes_before, bytes_after: of the model's files.
        was_auto: whether the scheme was chosen here.
        copied: why there was nothing to do, so that the output is a copy of the model; empty if it is not.
    """

    output: Path
    plan: Plan
    check: Check | None
    recipe: Recipe
    bytes_before: int
    bytes_after: int
    was_auto: bool = False
    copied: str = ""

    def unverified(self, *, floor_given: bool = False) -> str:
        """Why nobody knows how good the file is, in a sentence; empty where that is known.

        Args:
            floor_given: the user named a least SQNR, which must then have been measured.
        """
        if self.copied:
            return ""
        if self.check is None:
            return "--min-sqnr was not checked, because of --no-check" if floor_given else ""
        if not self.check.is_known:
            why = next(iter(self.check.notes), "its outputs could not be compared")
            return f"{self.output} was written, but nobody knows how good it is: {why}"
        if floor_given and not self.check.whole:
            return "--min-sqnr was not checked: the model is too large to be run whole without data; give --data"
        return ""

    def to_json(self) -> str:
        """Everything, for machines."""
        table = {
            "output": str(self.output),
            "scheme": self.plan.scheme,
            "was_auto": self.was_auto,
            "copied": self.copied,
            "target": self.plan.target,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "check": None if self.check is None else self.check.to_dict(),
            "nodes": [dataclasses.asdict(choice) for choice in self.plan],
        }
        return json.dumps(table, indent=1)


@bounded
def quantize(
    model: str | Path,
    output: str | Path | None = None,
    recipe: Recipe | str = "auto",
    *,
    target: str = "ort-cpu",
    data: DataSource | None = None,
    preprocessing: How = None,
    tokenizer: str | Path | None = None,
    lengths: Sequence[int] | None = None,
    limit: int | None = LIMIT,
    seed: int | None = None,
    ranges: str | Path | None = None,
    effort: Effort = Effort(),  # noqa: B008
    plan: Plan | None = None,
    force: bool = False,
    check: bool = True,
    threads: int = THREADS,
    trace: str | Path | None = None,
    guard: Guard | None = None,
    progress: Progress = QUIET,
    strict: bool = False,
) -> Result:
    """Quantize the model at `model` and write it to `output`, checked.

    Args:
        output: by default the model's name with the scheme in it, in the current folder.
        recipe: what to do; a scheme word is short for a recipe with that scheme.
        target: where it will run, a file name of `targets/`.
        data: calibration samples (`source.open_data` says in which forms).
        preprocessing: how images or sounds become inputs: words, or the path of a preprocessor_config.json.
        tokenizer: a tokenizer.json or its folder, for texts.
        lengths: tokens of samples made of texts, in turns.
        limit: use at most so many samples: the first, or with a `seed` a random choice of them.
        ranges: a file to take activation ranges from if it exists, and to leave them in if it does not.
        effort: what calibration may spend.
        plan: a plan to carry out as it is, without tuning.
        force: replace `output` if it exists.
        check: run the saved file. Without, it is not even loaded.
        threads: on which times are measured; 0 leaves it to onnxruntime.
        trace: a folder for the graph after every step, as ONNX text without weights.
        strict: a model in which nothing can be quantized is a failure. Without, it is copied to `output`, if one was
            named, so that whoever waits for a file there has one that runs.
        guard: knows of further files that are read or written; it says in the place of `force` what may be replaced.

    Raises:
        OnnxqError: one of its kinds (`errors.py`); no file is left behind then.
    """
    if output is not None:
        save.require_onnx(Path(output))
    guard = Guard(force) if guard is None else guard
    steps = Trace(trace, guard)
    path, reading = Path(model), reading_of(preprocessing, tokenizer, lengths)
    if output is not None:
        guard.writes(Path(output))
    try:
        job = open_job(model, recipe, target, data, reading, limit, threads, progress, seed, guard)
    except NothingToDo as nothing:
        return _copied(nothing, path, output, recipe, target, guard, strict=strict)
    destination = Path(output) if output is not None else Path(f"{path.stem}.{job.plan.scheme}.onnx")
    guard.writes(destination)
    guard.watch_ranges(ranges)
    steps.write("prepared", job.model)
    if plan is not None:
        require_possible(plan, job.model, job.target, job.path)
        job = dataclasses.replace(job, plan=reconciled(plan, job.model))
    # A model that is not tuned is encoded once, and its memory must not grow with it.
    is_tuned = check and plan is None and job.nbytes <= WHOLE_MODEL_BYTES
    try:
        with lazy.remembering() if is_tuned else contextlib.nullcontext():
            found, chosen, proof, nbytes = _made(job, destination, ranges, effort, plan, check, steps, guard)
    except NothingToDo as nothing:
        return _copied(nothing, path, output, recipe, target, guard, strict=strict)
    was_auto = (recipe if isinstance(recipe, str) else recipe.scheme) == "auto"
    if found is not NO_RANGES:
        job = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, calibration=found.method))
    return Result(
        destination, chosen, proof, job.recipe, sum(file.stat().st_size for file in job.files), nbytes, was_auto
    )


def _made(
    job: Job,
    destination: Path,
    ranges: str | Path | None,
    effort: Effort,
    plan: Plan | None,
    check: bool,
    steps: Trace,
    guard: Guard,
) -> tuple[Ranges, Plan, Check | None, int]:
    """Steps 4 to 8: ranges, the plan that was carried out, what the check found, and the bytes written."""
    found = find_ranges(job, ranges, effort)
    if found is not NO_RANGES:
        job = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, calibration=found.method))
    full = without_unobserved(job.model, job.plan, found) if found is not NO_RANGES else job.plan
    whole = job.nbytes <= WHOLE_MODEL_BYTES or found is not NO_RANGES
    seen = list(itertools.islice(job.data or (), LOOKED_AT)) if whole and check else []
    trials = trials_for(job.model, job.data, seen) if whole and check else Trials()
    names = values_to_observe(job.model, full)
    if names and any(label != GIVEN for label in trials.labels):
        found = fit_ranges(job.model, functools.partial(job.rewritten, full), names, found, trials, seen)
    if plan is None and not trials.proves:  # data show outliers where there are any
        full = without_outliers(job.model, full)
    bench = _bench(job, found, trials) if trials.samples and plan is None else None
    chosen = full if bench is None else _tuned(job, bench, full, job.recipe)
    if not chosen.changes_anything:
        raise _nothing_to_do(job, chosen)
    with save.staging(destination) as folder:
        staged = folder / destination.name
        nbytes = _write(job, chosen, found, staged, steps)
        proof = None
        if check and not whole:
            proof = _check_nodes(job, chosen, staged)
        elif check:
            proof = _check_whole(job, staged, trials)
            may_change = plan is None and not job.recipe.keep_slow
            if proof.is_slower(SLOWER) and chosen.those(*COMPUTING) and may_change:
                reason = "the saved file was slower than float"
                chosen = chosen.replacing(in_float(c, reason) for c in chosen.those(*COMPUTING))
                full = full.replacing(in_float(c, reason) for c in full.those(*COMPUTING))
                nbytes = _write(job, chosen, found, staged, steps)
                proof = _check_whole(job, staged, trials)
            for _ in range(RETRIES if bench is not None else 0):
                if bench is None or not misses_floor(proof, job.recipe):
                    break
                longer = _tuned(job, bench, full, stricter(proof, job.recipe, bench.quality(chosen).sqnr))
                if not longer.changes_anything:
                    break
                chosen = longer
                nbytes = _write(job, chosen, found, staged, steps)
                proof = _check_whole(job, staged, trials)
            proof = require_quality(proof, job.recipe)
            if proof.is_slower(SLOWER) and (why := why_slow(chosen)):
                proof = proof.noting(why)
            if job.target.has_onnxq_ops and (price := without_library(chosen, proof)):
                proof = proof.noting(price)
        guard.publish(staged, destination)
    return found, chosen, proof, nbytes


def _bench(job: Job, ranges: Ranges, trials: Trials) -> PlanBench:
    return PlanBench(job.model, lambda candidate: job.rewritten(candidate, ranges), trials, job.threads)


def _tuned(job: Job, bench: PlanBench, plan: Plan, recipe: Recipe) -> Plan:
    """`plan` tuned on the samples on which it is worst; and once more if others turn out to be worse in the end."""
    observed = values_to_observe(job.model, plan)
    bench.watch(plan)
    tuned = tune(bench, plan, recipe, observed, job.progress)
    if bench.overlooks(tuned, recipe.aim):
        tuned = tune(bench, tuned, recipe, observed, job.progress)
    return reconciled(tuned, job.model)


def _nothing_to_do(job: Job, plan: Plan) -> NothingToDo:
    reason = next((choice.reason for choice in plan), "the plan is empty")
    return NothingToDo(f"{job.path}: nothing could be quantized ({reason})")


def _copied(
    why: NothingToDo,
    path: Path,
    output: str | Path | None,
    recipe: Recipe | str,
    target: str,
    guard: Guard,
    *,
    strict: bool,
) -> Result:
    """What is done where there is nothing to do.

    Raises:
        NothingToDo: `why`, where no output was named; as a failure, where `strict` asks for one.
    """
    if strict:
        why.exit_code = BadModel.exit_code
    if strict or output is None:
        raise why
    wanted = Recipe(recipe) if isinstance(recipe, str) else recipe
    before, after = copy_model(path, Path(output), guard)
    return Result(Path(output), Plan(wanted.scheme, target), None, wanted, before, after, copied=str(why))


def _write(job: Job, plan: Plan, ranges: Ranges, staged: Path, steps: Trace) -> int:
    """Steps 6 and 7: the bytes written."""
    rewritten = job.rewritten(plan, ranges)
    steps.write("rewritten", rewritten)
    _sign(rewritten, job, plan)
    job.progress.start("writing", save.nbytes_to_write(rewritten))
    return save.save(rewritten, staged, job.progress.advance)


def _check_whole(job: Job, staged: Path, trials: Trials) -> Check:
    """Step 8, against the file the user gave; or the prepared model, where the runtime has no kernels for it."""
    job.progress.start("checking the saved file")
    try:
        reference = Session(job.path, threads=job.threads)
    except BadModel:
        reference = Session(job.model, threads=job.threads)
    bare = job.target.has_onnxq_ops
    return check_models(reference, staged, trials, threads=job.threads, bare=bare)


def _check_nodes(job: Job, plan: Plan, staged: Path) -> Check:
    """Step 8, for models too large to be run whole."""
    job.progress.start("checking the saved file")
    names = [choice.node for choice in plan if choice.method is not Method.KEEP]
    return check_nodes(job.model, staged, names, threads=job.threads)


def _sign(model: ir.Model, job: Job, plan: Plan) -> None:
    """Leave in the model's metadata what is needed to make it again."""
    recipe = dataclasses.asdict(job.recipe)
    table = {"version": __version__, "model": hash_model(job.model), "target": plan.target, "recipe": recipe}
    model.metadata_props["onnxq"] = json.dumps(table, sort_keys=True)
    model.producer_name, model.producer_version = "onnxq", __version__


class Trace:
    """Writes the graph after every step as ONNX text, without weights, if the user asked for it."""

    def __init__(self, folder: str | Path | None, guard: Guard) -> None:
        self.folder, self._guard = None if folder is None else Path(folder), guard
        self._numbers = itertools.count(1)
        if self.folder is not None and self.folder.is_dir():
            for path in self.folder.glob("[0-9]*-*.onnxtxt"):
                guard.writes(path, "--trace")  # of an earlier run: rather now than in the middle of it

    def write(self, step: str, model: ir.Model) -> None:
        if self.folder is not None:
            save.make_folder(self.folder)
            text = ir.to_onnx_text(model, exclude_initializers=True)
            path = self.folder / f"{next(self._numbers)}-{step}.onnxtxt"
            self._guard.writes(path, "--trace")
            self._guard.write_text(path, text)

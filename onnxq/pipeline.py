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
from onnxq.checking.models import Check
from onnxq.checking.saved import check_saved
from onnxq.checking.verdict import is_slow, judged, misses_floor, stricter
from onnxq.encoding import lazy
from onnxq.errors import BadModel, NothingToDo
from onnxq.files.guard import Guard
from onnxq.job import Environment, Job, open_job
from onnxq.output import write as save
from onnxq.output.copy_model import copy_model
from onnxq.output.trace import Trace
from onnxq.plan import COMPUTING, Plan, in_float
from onnxq.planning.check_plan import require_possible
from onnxq.planning.outliers import without_outliers
from onnxq.planning.scales import values_to_observe, without_unobserved
from onnxq.planning.shared_weights import reconciled
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.runtime.session import THREADS
from onnxq.samples.reading import How, reading_of
from onnxq.samples.sampling import LIMIT, Sampling
from onnxq.samples.source import DataSource
from onnxq.samples.trials import GIVEN, Trials
from onnxq.summaries.ranges import NO_RANGES, Ranges
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.tune import tune
from onnxq.version import __version__

#: Float models larger than this are not run whole unless calibration runs them anyway.
WHOLE_MODEL_BYTES = 1 << 30
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


@dataclass(frozen=True)
class Request:
    """Everything that the user asked for.

    Attributes:
        output: None: the model's name with the scheme in it, in the current folder.
        plan: to be carried out as it is, without tuning.
        check: run the saved file.
        ranges: a file of them; `effort` is what finding them may take.
    """

    model: Path
    output: Path | None
    recipe: Recipe
    target: str
    plan: Plan | None
    check: bool
    sampling: Sampling
    ranges: Path | None
    effort: Effort
    environment: Environment


@bounded
def quantize(  # noqa: PLR0913 - the door for users: their keywords, with the defaults that help() shows
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
    environment = Environment(threads, progress, Guard(force) if guard is None else guard)
    request = Request(
        model=Path(model),
        output=None if output is None else Path(output),
        recipe=Recipe(recipe) if isinstance(recipe, str) else recipe,
        target=target,
        plan=plan,
        check=check,
        sampling=Sampling(data, reading_of(preprocessing, tokenizer, lengths), limit, seed),
        ranges=None if ranges is None else Path(ranges),
        effort=effort,
        environment=environment,
    )
    try:
        return _quantized(request, Trace(trace, environment.guard))
    except NothingToDo as nothing:
        if strict:
            nothing.exit_code = BadModel.exit_code
        if strict or request.output is None:
            raise
        return _copied(request, request.output, nothing)


def _quantized(request: Request, trace: Trace) -> Result:
    """Eight steps; what the last one finds may lead to another plan, which takes the last three again."""
    job, destination = _opened(request)  # 1 to 3: load, prepare, plan
    trace.write("prepared", job.model)
    with _remembering(request, job):
        job, ranges, trials = _calibrated(request, job)  # 4
        drafts = Drafts(request, job, ranges, trials)
        plan, proof = drafts.first(), None  # 5: tune
        with save.staging(destination) as folder:
            staged = folder / destination.name
            better: Plan | None = plan
            while better is not None:
                plan = better
                rewritten = job.rewritten(plan, ranges)  # 6
                trace.write("rewritten", rewritten)
                nbytes = _written(rewritten, job, plan, staged)  # 7
                proof = check_saved(job, plan, staged, trials) if request.check else None  # 8
                better = drafts.after(plan, proof)
            if proof is not None:
                proof = judged(job, plan, proof)
            job.guard.publish(staged, destination)
    before = sum(file.stat().st_size for file in job.files)
    return Result(destination, plan, proof, job.recipe, before, nbytes, was_auto=request.recipe.scheme == "auto")


def _opened(request: Request) -> tuple[Job, Path]:
    """Steps 1 to 3, and where the result goes. Every file that will be written is known from here on."""
    guard = request.environment.guard
    if request.output is not None:
        save.require_onnx(request.output)
        guard.writes(request.output)
    job = open_job(request.model, request.recipe, request.target, request.sampling, request.environment)
    destination = request.output or Path(f"{job.path.stem}.{job.plan.scheme}.onnx")
    guard.writes(destination)
    guard.watch_ranges(request.ranges)
    if request.plan is not None:
        require_possible(request.plan, job.model, job.target, job.path)
        job = dataclasses.replace(job, plan=reconciled(request.plan, job.model))
    return job, destination


def _remembering(request: Request, job: Job) -> contextlib.AbstractContextManager[object]:
    """A model that is not tuned is encoded once, and its memory must not grow with it."""
    is_tuned = request.check and request.plan is None and job.nbytes <= WHOLE_MODEL_BYTES
    return lazy.remembering() if is_tuned else contextlib.nullcontext()


def _calibrated(request: Request, job: Job) -> tuple[Job, Ranges, Trials | None]:
    """Step 4: the ranges that the plan needs, the job without what cannot be observed, and what to measure plans on.

    There is nothing to measure on (None) where the models are too large to be run whole.
    """
    ranges = find_ranges(job, request.ranges, request.effort)
    if ranges is not NO_RANGES:
        recipe = dataclasses.replace(job.recipe, calibration=ranges.method)
        job = dataclasses.replace(job, recipe=recipe, plan=without_unobserved(job.model, job.plan, ranges))
    trials = None
    if job.nbytes <= WHOLE_MODEL_BYTES or ranges is not NO_RANGES:
        seen = list(itertools.islice(job.data or (), LOOKED_AT)) if request.check else []
        trials = trials_for(job.model, job.data, seen) if request.check else Trials()
        names = values_to_observe(job.model, job.plan)
        if names and any(label != GIVEN for label in trials.labels):
            rewrite = functools.partial(job.rewritten, job.plan)
            ranges = fit_ranges(job.model, rewrite, names, ranges, trials, seen)
    if request.plan is None and not (trials and trials.proves):  # data show outliers where there are any
        job = dataclasses.replace(job, plan=without_outliers(job.model, job.plan))
    return job, ranges, trials


class Drafts:
    """Step 5: the plan to write; and after each check, which one to write instead."""

    def __init__(self, request: Request, job: Job, ranges: Ranges, trials: Trials | None) -> None:
        self._job, self._full = job, job.plan
        is_free = request.plan is None
        self._may_give_back = is_free and not job.recipe.keep_slow
        self._bench = None
        if is_free and trials and trials.samples:
            rewrite = lambda plan: job.rewritten(plan, ranges)  # noqa: E731
            self._bench = PlanBench(job.model, rewrite, trials, job.threads)
        self._retries = 0 if self._bench is None else RETRIES

    def first(self) -> Plan:
        """The job's plan, tuned if it may be.

        Raises:
            NothingToDo: it changes nothing.
        """
        plan = self._full if self._bench is None else self._tuned(self._bench, self._job.recipe)
        if not plan.changes_anything:
            reason = next((choice.reason for choice in plan), "the plan is empty")
            raise NothingToDo(f"{self._job.path}: nothing could be quantized ({reason})")
        return plan

    def after(self, plan: Plan, proof: Check | None) -> Plan | None:
        """What to write in the place of `plan`, of whose file the check found `proof`; None: it stays."""
        if proof is None or not proof.whole:
            return None
        may_give_back, self._may_give_back = self._may_give_back, False  # the first file alone is judged by its speed
        if may_give_back and is_slow(proof) and plan.those(*COMPUTING):
            reason = "the saved file was slower than float"
            self._full = self._full.replacing(in_float(c, reason) for c in self._full.those(*COMPUTING))
            return plan.replacing(in_float(c, reason) for c in plan.those(*COMPUTING))
        if self._bench is None or not self._retries or not misses_floor(proof, self._job.recipe):
            return None
        self._retries -= 1
        longer = self._tuned(self._bench, stricter(proof, self._job.recipe, self._bench.quality(plan).sqnr))
        return longer if longer.changes_anything else None

    def _tuned(self, bench: PlanBench, recipe: Recipe) -> Plan:
        """The plan tuned on the samples on which it is worst; and once more if others turn out worse in the end."""
        model, progress = self._job.model, self._job.progress
        observed = values_to_observe(model, self._full)
        bench.watch(self._full)
        tuned = tune(bench, self._full, recipe, observed, progress)
        if bench.overlooks(tuned, recipe.aim):
            tuned = tune(bench, tuned, recipe, observed, progress)
        return reconciled(tuned, model)


def _copied(request: Request, output: Path, why: NothingToDo) -> Result:
    """What is done where there is nothing to do."""
    before, after = copy_model(request.model, output, request.environment.guard)
    plan = Plan(request.recipe.scheme, request.target)
    return Result(output, plan, None, request.recipe, before, after, copied=str(why))


def _written(rewritten: ir.Model, job: Job, plan: Plan, staged: Path) -> int:
    """Step 7: the bytes written."""
    _sign(rewritten, job, plan)
    job.progress.start("writing", save.nbytes_to_write(rewritten))
    return save.save(rewritten, staged, job.progress.advance)


def _sign(model: ir.Model, job: Job, plan: Plan) -> None:
    """Leave in the model's metadata what is needed to make it again."""
    recipe = dataclasses.asdict(job.recipe)
    table = {"version": __version__, "model": hash_model(job.model), "target": plan.target, "recipe": recipe}
    model.metadata_props["onnxq"] = json.dumps(table, sort_keys=True)
    model.producer_name, model.producer_version = "onnxq", __version__

"""The first four of eight steps, which `quantize` and `search` share: a job, ranges, what data say of its layers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

from onnxq.boundary import warn
from onnxq.calibration.find_ranges import find_ranges
from onnxq.calibration.gather_evidence import evidence_of, follows_codes, needed, of_float_layers
from onnxq.calibration.layers.balance_channels import balanced
from onnxq.calibration.lengths import LOOKED_AT, fit_ranges
from onnxq.calibration.memory import bytes_for
from onnxq.checking.judging import trials_for
from onnxq.drafts.budgeted import forms_of, progress_of
from onnxq.drafts.taken_there import taken_there
from onnxq.encoding import memo
from onnxq.errors import BadRecipe, UnusedOption
from onnxq.files.staging import scratch
from onnxq.job import WHOLE_MODEL_BYTES, Job, open_job
from onnxq.model.layer_inputs import LayerInput
from onnxq.output import write as save
from onnxq.plan import Plan
from onnxq.planning.check_plan import require_possible
from onnxq.planning.outliers import without_outliers
from onnxq.planning.scales import values_to_observe, without_unobserved
from onnxq.planning.shared_weights import reconciled
from onnxq.request import Request
from onnxq.samples.trials import GIVEN, Trials
from onnxq.searching.meter import is_progress
from onnxq.searching.options import SCHEME
from onnxq.summaries.evidence import NO_EVIDENCE, open_index
from onnxq.summaries.ranges import NO_RANGES, Ranges


def destination_of(request: Request, job: Job, plan: Plan) -> Path:
    """Where the model goes that `plan` makes."""
    return request.output or Path(f"{job.path.stem}.{plan.scheme}.onnx")


def opened(request: Request, *, writes: bool = True) -> Job:
    """Steps 1 to 3. Every file that will be written is known from here on.

    Args:
        writes: whether a model is made in the end.
    """
    guard = request.environment.guard
    if request.output is not None:
        save.require_onnx(request.output)
        guard.writes(request.output)
    also, known = _also(request), _known(request)
    job = open_job(request.model, request.recipe, request.target, request.sampling, request.environment, also, known)
    if request.budget is not None:
        job = dataclasses.replace(job, plan=dataclasses.replace(job.plan, scheme=SCHEME), dense=None)
    for each in filter(None, (job.plan, job.dense)) if writes else ():
        guard.writes(destination_of(request, job, each))
    if writes and request.budget is not None:
        guard.writes(progress_of(destination_of(request, job, job.plan)), "-o", is_progress)
    guard.watch(request.ranges, "--ranges")
    guard.watch(request.evidence, "--evidence")
    if request.like is not None:
        require_possible(request.like.plan, job.model, job.target, job.path)
    if request.plan is not None:
        require_possible(request.plan, job.model, job.target, job.path)
        job = dataclasses.replace(job, plan=reconciled(request.plan, job.model))
    return job


def _known(request: Request) -> str:
    """The hash of the data of which the user has evidence; empty where it is still to be gathered.

    Raises:
        BadRecipe: it is damaged, or can be neither found nor gathered.
    """
    file = request.evidence
    if file is not None and file.exists():
        return open_index(file)[0].data
    if file is not None and request.sampling.source is None:
        raise BadRecipe(f"there is no evidence '{file}': gather it by 'onnxq calibrate --evidence', or give --data")
    return ""


def _also(request: Request) -> set[str]:
    """Formats and schemes in which nodes may be, besides what the recipe says."""
    if request.plan is not None and request.plan.scheme == SCHEME:
        return {choice.format for choice in request.plan if choice.format is not None}
    return {form.word for form in forms_of(request)}


def remembering(request: Request, job: Job) -> contextlib.AbstractContextManager[object]:
    """What was made of a weight is remembered where several plans or ranges may be tried. Else it is encoded once, and
    memory must not grow with the model."""
    is_tuned = request.check and request.is_free and job.nbytes <= WHOLE_MODEL_BYTES
    has_ranges = bool(values_to_observe(job.model, job.plan))
    if not (is_tuned or has_ranges or needed(job)):
        return contextlib.nullcontext()
    return memo.remembering(min(memo.MEMORY_BYTES, bytes_for(request.effort.memory) // 2))


def with_balance(request: Request, job: Job) -> tuple[Job, list[str]]:
    """The job with channels scaled where that helps, and what was done. Files of ranges and evidence hold for the model
    as it is."""
    if (
        not job.recipe.balance
        or request.budget is not None
        or request.ranges is not None
        or request.evidence is not None
    ):
        return job, []
    if job.nbytes > WHOLE_MODEL_BYTES and not values_to_observe(job.model, job.plan):
        return job, []
    made = balanced(job, request.effort.memory)
    return made.job, [str(made)] if made.ways else []


def calibrated(request: Request, job: Job) -> tuple[Job, Ranges, Trials | None]:
    """Step 4: the ranges that the plan needs, the job without what cannot be observed, and what to measure plans on.

    There is nothing to measure on (None) where the models are too large to be run whole.
    """
    ranges = find_ranges(job, request.ranges, request.effort)
    if ranges is not NO_RANGES:
        recipe = dataclasses.replace(job.recipe, calibration=ranges.method)
        job = dataclasses.replace(job, recipe=recipe, plan=without_unobserved(job.model, job.plan, ranges))
    elif request.ranges is not None:
        sentence = f"the file '{request.ranges}' changes nothing: {job.plan.scheme} needs no activation ranges here"
        warn(sentence, UnusedOption)
    trials = None
    if job.nbytes <= WHOLE_MODEL_BYTES or ranges is not NO_RANGES:
        seen = list(itertools.islice(job.data or (), LOOKED_AT)) if request.check else []
        trials = trials_for(job, seen, request.sampling.held_back) if request.check else Trials()
        names = values_to_observe(job.model, job.plan)
        if names and any(label != GIVEN for label in trials.labels):
            rewrite = functools.partial(job.rewritten, job.plan)
            ranges = fit_ranges(job, rewrite, names, ranges, trials, seen)
    if request.check and request.plan is None and job.nbytes <= WHOLE_MODEL_BYTES:
        (plan,) = taken_there(job, [job.plan], ranges, trials)
        job = dataclasses.replace(job, plan=plan)
    if request.plan is None and not (trials and trials.proves):  # data show outliers where there are any
        job = dataclasses.replace(job, plan=without_outliers(job.model, job.plan))
    return job, ranges, trials


def with_evidence(
    request: Request, job: Job, kept: contextlib.ExitStack, ranges: Ranges, plans: Sequence[Plan] = ()
) -> Job:
    """The job with what its data say of layers, where codes are chosen by that; it lies on disk until `kept` ends.

    Args:
        plans: what may be carried out in the place of the job's plan.
    """
    inputs: dict[str, list[LayerInput]] = {}
    for plan in plans or (job.plan,):
        inputs |= needed(dataclasses.replace(job, plan=plan))
    if not inputs:
        if request.evidence is not None:
            sentence = f"evidence changes nothing: {job.plan.scheme} chooses no codes by data here"
            warn(sentence, UnusedOption)
        return job
    folder = kept.enter_context(scratch())
    if plans:  # of which none is known to be the one: what is seen is of float layers
        found = of_float_layers(job, inputs, request.effort, folder, request.evidence)
    else:
        found = evidence_of(job, inputs, request.effort, folder, request.evidence, ranges)
    return dataclasses.replace(job, evidence=found)


def following(request: Request, job: Job, plan: Plan, kept: contextlib.ExitStack, ranges: Ranges) -> Job:
    """The job with evidence behind layers as `plan` has them, if that before was gathered behind others; or behind
    float ones, while the plan was still searched for."""
    follows = any(layer.follows for layer in job.evidence.values())
    if follows and plan.forms == job.plan.forms:
        return job
    found = dataclasses.replace(job, plan=plan, evidence=NO_EVIDENCE)
    was_searched = request.budget is not None and request.evidence is None and job.plan is not plan
    if not follows and not (job.evidence and was_searched and follows_codes(found)):
        return job
    return with_evidence(request, found, kept, ranges)

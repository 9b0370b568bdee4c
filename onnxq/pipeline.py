"""The whole story: `quantize()`, from a float model on disk to a checked quantized one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from onnxq import targets
from onnxq.boundary import bounded
from onnxq.calibration.calibrate import hash_model
from onnxq.calibration.find_ranges import Effort, find_ranges
from onnxq.calibration.gather_evidence import evidence_of, follows_codes, needed, of_float_layers
from onnxq.calibration.layers.balance_channels import balanced
from onnxq.calibration.layers.correct_biases import WHOLE_MODEL_BYTES as WHOLE_MODEL_BYTES
from onnxq.calibration.layers.correct_biases import biases_corrected
from onnxq.calibration.lengths import LOOKED_AT, fit_ranges
from onnxq.checking.judging import trials_for
from onnxq.checking.logits import classes_of
from onnxq.checking.result import Result
from onnxq.checking.saved import check_saved
from onnxq.checking.score import Evaluate
from onnxq.checking.verdict import judged, require_gain
from onnxq.drafts.budgeted import BudgetDrafts, asked, candidates_of, forms_of, progress_of, scored
from onnxq.drafts.tuned import Drafts
from onnxq.encoding import memo
from onnxq.errors import BadModel, BadRecipe, NothingToDo, one_line
from onnxq.files import mirror
from onnxq.files.guard import Guard
from onnxq.files.staging import scratch
from onnxq.job import Environment, Job, open_job
from onnxq.model.layer_inputs import LayerInput
from onnxq.output import write as save
from onnxq.output.copy_model import copy_model
from onnxq.output.data_writer import ShardSize
from onnxq.output.packed_elsewhere import pack_elsewhere
from onnxq.output.signature import Signature, sign
from onnxq.output.trace import Trace
from onnxq.plan import Plan
from onnxq.planning.check_plan import require_possible
from onnxq.planning.outliers import without_outliers
from onnxq.planning.scales import values_to_observe, without_unobserved
from onnxq.planning.shared_weights import reconciled
from onnxq.planning.unused_options import UnusedOption
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.request import Learn, Learned, Request
from onnxq.runtime.machine import this_machine
from onnxq.runtime.profile import MachineProfile, load_profile, new_profile
from onnxq.runtime.session import THREADS, version
from onnxq.samples.reading import How, reading_of
from onnxq.samples.sampling import HELD_BACK, LIMIT, Sampling
from onnxq.samples.source import DataSource
from onnxq.samples.trials import GIVEN, Trials
from onnxq.searching.budget import Budget
from onnxq.searching.meter import is_progress, remove
from onnxq.searching.options import SCHEME
from onnxq.summaries.evidence import NO_EVIDENCE, open_index
from onnxq.summaries.ranges import NO_RANGES, Ranges
from onnxq.version import __version__


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
    evidence: str | Path | None = None,
    effort: Effort = Effort(),  # noqa: B008
    plan: Plan | None = None,
    profile: str | Path | MachineProfile | None = None,
    like: str | Path | None = None,
    force: bool = False,
    check: bool = True,
    threads: int = THREADS,
    trace: str | Path | None = None,
    guard: Guard | None = None,
    progress: Progress = QUIET,
    strict: bool = False,
    evaluate: Evaluate | str | None = None,
    max_drop: float | None = None,
    budget: Budget | str | None = None,
    formats: Sequence[str] = (),
    logits: Sequence[str] = (),
    metric: str | None = None,
    labels: str | None = None,
    one_scheme: bool = False,
    shard_size: ShardSize = None,
    learn: Learn | None = None,
    held_back: int = HELD_BACK,
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
        evidence: the same for what data say of layers, by which codes of few bits are chosen (`.npz`).
        effort: what calibration may spend.
        plan: a plan to carry out as it is, without tuning.
        profile: the times to decide by, of the machine that will run the model; without, they are measured here.
        like: a model to repeat: recipe, target, plan and check are those by which it was made, whatever is given here.
        force: replace `output` if it exists.
        check: run the saved file. Without, it is not even loaded.
        threads: on which times are measured; 0 leaves it to onnxruntime.
        trace: a folder for the graph after every step, as ONNX text without weights.
        strict: a model in which nothing can be quantized, or nothing is gained by it, is a failure. Without, it is
            copied to `output`, if one was named, so that whoever waits for a file there has one that runs.
        evaluate: a function (or `module:function`) that scores a model by its path, the higher the better; if its
            parameter is called `session`, it gets an onnxruntime session.
        max_drop: by how much that score may fall below the float model's: longer formats are tried until it does not,
            or nothing is written.
        budget: what a search for the plan may spend (`searching.budget`): the most accurate plan of a size, mean bits
            or latency, or the smallest one of a drop.
        formats: what the search chooses from, with a block size or without (`uint4/64`); by default the usual ones.
        metric: a score on the samples that calibration does not see, a quarter of all then, in the place of `evaluate`:
            top1, top5, f1, nll, kld or psnr.
        labels: the array beside the inputs in the data that holds the right answers, for all metrics but kld.
        logits: outputs that are scores of classes, where the graph does not say so; `none`: there are none.
        guard: knows of further files that are read or written; it says in the place of `force` what may be replaced.
        one_scheme: without data `auto` stands for w4a16, also where bf16 would be faster: for parts that share weights
            with others.
        shard_size: of the files beside a large model: at most so many bytes each, or `layer`: one for each node.
        learn: makes another model of the one that is about to be written (`training/run.py`).
        held_back: samples that calibration does not see, at most a quarter of all.

    Raises:
        OnnxqError: one of its kinds (`errors.py`); no file is left behind then.
    """
    environment = Environment(threads, progress, Guard(force) if guard is None else guard, shard_size)
    here, there, data = mirror.read_and_written(model, output, data)
    request = Request(
        model=here,
        output=there,
        recipe=Recipe(recipe) if isinstance(recipe, str) else recipe,
        target=target,
        plan=plan,
        check=check,
        sampling=Sampling(data, reading_of(preprocessing, tokenizer, lengths), limit, seed, held_back, labels),
        ranges=None if ranges is None else Path(ranges),
        evidence=None if evidence is None else Path(evidence),
        effort=effort,
        environment=environment,
        profile=_profile(profile, environment),
        one_scheme=one_scheme,
        learn=learn,
    ).repeating(like)
    request = scored(asked(request, budget, formats, logits), evaluate, metric, max_drop)
    return _quantized_or_copied(request, Trace(trace, environment.guard), strict=strict)


def _quantized_or_copied(request: Request, trace: Trace, *, strict: bool) -> Result:
    try:
        with _computing_as_there(request), request.environment.sharing(request.effort.cluster):
            return _quantized(request, trace)
    except NothingToDo as nothing:
        return _copied(request, nothing, strict)


def _quantized(request: Request, trace: Trace) -> Result:
    """Eight steps; what the last one finds may lead to another plan, which takes the last three again."""
    job = opened(request)  # 1 to 3: load, prepare, plan
    trace.write("prepared", job.model)
    with remembering(request, job), contextlib.ExitStack() as kept:
        job, balance = _balanced(request, job)
        job, ranges, trials = calibrated(request, job)  # 4
        plans = candidates_of(request, job, ranges)
        job = with_evidence(request, job, kept, ranges, plans)
        drafts = _drafts(request, job, ranges, trials, plans)
        plan, proof = drafts.first(), None  # 5: tune
        job, destination = drafts.job, _destination(request, job, plan)
        with save.staging(destination) as folder:
            staged = folder / destination.name
            better: Plan | None = plan
            classes = classes_of(job.model, request.logits)
            while better is not None:
                plan = better
                job = _following(request, job, plan, kept, ranges)
                corrected = biases_corrected(job, plan, ranges, request.effort.memory)
                learned = Learned(corrected.job, ranges)
                if request.learn is not None:
                    learned = request.learn(job, corrected.job, plan, ranges, destination)
                rewritten = learned.job.rewritten(plan, learned.ranges, is_final=True)  # 6
                trace.write("rewritten", rewritten)
                signature = _signature(request, job, plan)
                nbytes = _written(rewritten, signature, job, staged)  # 7
                older = functools.partial(corrected.job.rewritten, plan, ranges) if job.target.spelled else None
                proof = check_saved(job, plan, staged, trials, classes, older) if request.check else None  # 8
                better = drafts.after(plan, proof, staged) if request.learn is None else None
            if proof is not None:
                proof = judged(job, plan, proof)
            before = job.file_nbytes
            if request.is_free:
                is_faster = drafts.is_faster(plan, proof) if nbytes >= before else None
                require_gain(job.path, request.recipe, plan, (before, nbytes), is_faster)
            job.guard.publish(staged, destination)
            if request.budget is not None:
                remove(progress_of(destination))
    was_auto = request.recipe.scheme == "auto"
    notes = (*_notes(request, signature), *balance, *corrected.notes, *learned.notes, *_what_data_chose(job))
    result = Result(destination, plan, proof, job.recipe, before, nbytes, was_auto)
    return dataclasses.replace(result, signature=signature, notes=notes, score=drafts.score)


def _what_data_chose(job: Job) -> Iterator[str]:
    """By which algorithm the output channels of weights got their codes, where data had a say."""
    chosen: Counter[str] = sum((layer.chosen for layer in job.evidence.values()), Counter())
    if chosen:
        shares = ", ".join(f"{word} {count / chosen.total():.0%}" for word, count in chosen.most_common())
        weights = sum(bool(layer.chosen) for layer in job.evidence.values())
        yield f"data chose the codes of {weights} weights; algorithms by output channel: {shares}"


def _profile(given: str | Path | MachineProfile | None, environment: Environment) -> MachineProfile:
    if isinstance(given, MachineProfile):
        return dataclasses.replace(given, used={}, computes=False)  # of this model
    environment.guard.reads(given)
    return new_profile(environment.threads) if given is None else load_profile(given, environment.threads)


def _computing_as_there(request: Request) -> contextlib.AbstractContextManager[None]:
    """While own kernels are used, they take the thresholds of the machine whose times decide."""
    own = targets.get(request.target).has_onnxq_ops
    return request.profile.as_there() if own else contextlib.nullcontext()


def _destination(request: Request, job: Job, plan: Plan) -> Path:
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
        guard.writes(_destination(request, job, each))
    if writes and request.budget is not None:
        guard.writes(progress_of(_destination(request, job, job.plan)), "-o", is_progress)
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
    return memo.remembering() if is_tuned or has_ranges or needed(job) else contextlib.nullcontext()


def _balanced(request: Request, job: Job) -> tuple[Job, list[str]]:
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
    trials = None
    if job.nbytes <= WHOLE_MODEL_BYTES or ranges is not NO_RANGES:
        seen = list(itertools.islice(job.data or (), LOOKED_AT)) if request.check else []
        trials = trials_for(job.model, job.data, seen, request.sampling.held_back) if request.check else Trials()
        names = values_to_observe(job.model, job.plan)
        if names and any(label != GIVEN for label in trials.labels):
            rewrite = functools.partial(job.rewritten, job.plan)
            ranges = fit_ranges(job.model, rewrite, names, ranges, trials, seen)
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
            warnings.warn(sentence, UnusedOption, stacklevel=2)
        return job
    folder = kept.enter_context(scratch())
    if plans:  # of which none is known to be the one: what is seen is of float layers
        found = of_float_layers(job, inputs, request.effort, folder, request.evidence)
    else:
        found = evidence_of(job, inputs, request.effort, folder, request.evidence, ranges)
    return dataclasses.replace(job, evidence=found)


def _following(request: Request, job: Job, plan: Plan, kept: contextlib.ExitStack, ranges: Ranges) -> Job:
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


def _drafts(
    request: Request, job: Job, ranges: Ranges, trials: Trials | None, plans: Sequence[Plan]
) -> Drafts | BudgetDrafts:
    if request.budget is None:
        return Drafts(request, job, ranges, trials)

    def nbytes_of(plan: Plan) -> int:
        with scratch() as folder:
            return _written(job.rewritten(plan, ranges), _signature(request, job, plan), job, folder / "tried.onnx")

    return BudgetDrafts(request, job, ranges, trials, plans, _destination(request, job, job.plan), nbytes_of)


def _copied(request: Request, why: NothingToDo, strict: bool) -> Result:
    """What is done where there is nothing to do.

    Raises:
        NothingToDo: no output was named, or that is a failure.
    """
    output = request.output
    if strict:
        why.exit_code = BadModel.exit_code
    if strict or output is None:
        raise why
    environment = request.environment
    before, after = copy_model(request.model, output, environment.guard, environment.shard_size)
    plan = Plan(request.recipe.scheme, request.target)
    return Result(output, plan, None, request.recipe, before, after, copied=str(why))


def _written(rewritten: ir.Model, signature: Signature, job: Job, staged: Path) -> int:
    """Step 7: the bytes written."""
    sign(rewritten, signature)
    for engine in job.environment.shared:
        pack_elsewhere(engine, rewritten)
    job.progress.start("writing", save.nbytes_to_write(rewritten))
    return save.save(rewritten, staged, job.progress.advance, job.environment.shard_size)


def _signature(request: Request, job: Job, plan: Plan) -> Signature:
    """What is needed to make the model again."""
    old, profile = request.like, request.profile
    return Signature(
        version=__version__,
        onnxruntime=version(),
        model=hash_model(job.model if job.unscaled is None else job.unscaled),
        data=job.data_hash,
        recipe=job.recipe,
        asked=request.recipe.scheme,
        plan=plan,
        is_given=request.plan is not None or request.budget is not None,
        is_checked=request.check,
        is_trained=request.learn is not None,
        held_back=None if job.data is None or job.sampling.held_back == HELD_BACK else job.sampling.held_back,
        profile=profile.hash if old is None else old.profile,
        machine=(str(profile) if profile.used else "") if old is None else old.machine,
    )


def _notes(request: Request, made: Signature) -> Iterator[str]:
    """What the user should know of how it was made."""
    if request.like is not None:
        for difference in request.like.differences(made):
            yield f"not the same again: {difference}"
    here, there = this_machine(), request.profile.machine
    if made.profile and request.like is None and here.isa != there.isa:
        words = f"({there.cpu}), and errors were measured on this one ({here.cpu})"
        yield one_line(f"times are those of another processor {words}")

"""The whole story: `quantize()`, from a float model on disk to a checked quantized one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from onnxq import targets
from onnxq.boundary import bounded
from onnxq.calibration.calibrate import hash_model
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.layers.correct_biases import biases_corrected
from onnxq.calibration.shards import calibration_samples
from onnxq.checking.logits import classes_of
from onnxq.checking.result import Result
from onnxq.checking.saved import check_saved
from onnxq.checking.score import Evaluate
from onnxq.checking.verdict import judged, require_gain
from onnxq.drafts.budgeted import BudgetDrafts, asked, candidates_of, progress_of, scored
from onnxq.drafts.opening import calibrated, destination_of, following, opened, remembering, with_balance, with_evidence
from onnxq.drafts.tuned import Drafts
from onnxq.errors import BadModel, BadRecipe, NothingToDo, amount, one_line
from onnxq.files import mirror
from onnxq.files.guard import Guard
from onnxq.files.staging import scratch
from onnxq.job import WHOLE_MODEL_BYTES, Environment, Job
from onnxq.output import write as save
from onnxq.output.copy_model import copy_model
from onnxq.output.data_writer import ShardSize
from onnxq.output.packed_elsewhere import pack_elsewhere
from onnxq.output.signature import Signature, sign
from onnxq.output.trace import Trace
from onnxq.plan import COMPUTING, Plan
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.request import Learn, Learned, Request, learned_by
from onnxq.runtime.machine import this_machine
from onnxq.runtime.ort.installed import version
from onnxq.runtime.profile import MachineProfile, load_profile, new_profile
from onnxq.runtime.session import THREADS, Session
from onnxq.samples.reading import How, reading_of
from onnxq.samples.sampling import HELD_BACK, LIMIT, Sampling
from onnxq.samples.source import DataSource
from onnxq.samples.trials import Trials
from onnxq.searching.budget import Budget
from onnxq.searching.meter import remove
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
    if held_back < 1:
        raise BadRecipe(f"held_back={held_back}: at least one sample is held back, to judge by")
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
        job, balance = with_balance(request, job)
        job, ranges, trials = calibrated(request, job)  # 4
        plans = candidates_of(request, job, ranges, trials)
        job = with_evidence(request, job, kept, ranges, plans)
        if ranges is not NO_RANGES or job.evidence:  # else the check tells
            job.tell_gaps()
        drafts = _drafts(request, job, ranges, trials, plans)
        plan, proof = drafts.first(), None  # 5: tune
        job, destination = drafts.job, destination_of(request, job, plan)
        with save.staging(destination) as folder:
            staged = folder / destination.name
            better: Plan | None = plan
            classes = classes_of(job.model, request.logits)
            while better is not None:
                plan = better
                job = following(request, job, plan, kept, ranges)
                corrected = biases_corrected(job, plan, ranges, request.effort.memory)
                learned = Learned(corrected.job, ranges)
                if request.learn is not None:
                    learned = learned_by(request.learn, job, corrected.job, plan, ranges, destination)
                rewritten = learned.job.rewritten(plan, learned.ranges, is_final=True)  # 6
                trace.write("rewritten", rewritten)
                signature = _signature(request, job, plan)
                nbytes = _written(rewritten, signature, job, staged)  # 7
                measured = functools.partial(corrected.job.rewritten, plan, ranges)
                proof = check_saved(job, plan, staged, trials, measured, classes) if request.check else None  # 8
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
    doubts = [drafts.score.doubt] if drafts.score is not None and drafts.score.doubt else []
    found = (*_what_gave_ranges(request, job, ranges), *_what_data_chose(job), *doubts)
    notes = (*_notes(request, signature), *balance, *corrected.notes, *learned.notes, *found)
    result = Result(destination, plan, proof, job.recipe, before, nbytes, was_auto)
    is_outweighed = save.is_outweighed(job.path, rewritten, (before, nbytes))
    return dataclasses.replace(
        result, signature=signature, notes=notes, score=drafts.score, is_outweighed=is_outweighed
    )


def _what_gave_ranges(request: Request, job: Job, ranges: Ranges) -> Iterator[str]:
    """Where that were not all samples."""
    if ranges.samples and request.ranges is None and ranges.samples < (samples := calibration_samples(job).count):
        yield f"{ranges.samples} of {samples} samples gave ranges, as a run is much work; all do with --effort thorough"


def _what_data_chose(job: Job) -> Iterator[str]:
    """By which algorithm the output channels of weights got their codes, where data had a say."""
    chosen: Counter[str] = sum((layer.chosen for layer in job.evidence.values()), Counter())
    if chosen:
        shares = ", ".join(f"{word} {count / chosen.total():.0%}" for word, count in chosen.most_common())
        weights = amount(sum(bool(layer.chosen) for layer in job.evidence.values()), "weight")
        yield f"data chose the codes of {weights}; algorithms by output channel: {shares}"


def _profile(given: str | Path | MachineProfile | None, environment: Environment) -> MachineProfile:
    if isinstance(given, MachineProfile):
        return dataclasses.replace(given, used={}, computes=False)  # of this model
    environment.guard.reads(given)
    return new_profile(environment.threads) if given is None else load_profile(given, environment.threads)


def _computing_as_there(request: Request) -> contextlib.AbstractContextManager[None]:
    """While own kernels are used, they take the thresholds of the machine whose times decide."""
    own = targets.get(request.target).has_onnxq_ops
    return request.profile.as_there() if own else contextlib.nullcontext()


def _drafts(
    request: Request, job: Job, ranges: Ranges, trials: Trials | None, plans: Sequence[Plan]
) -> Drafts | BudgetDrafts:
    if request.budget is None:
        return Drafts(request, job, ranges, trials)

    def nbytes_of(plan: Plan) -> int:
        with scratch() as folder:
            return _written(job.rewritten(plan, ranges), _signature(request, job, plan), job, folder / "tried.onnx")

    return BudgetDrafts(request, job, ranges, trials, plans, destination_of(request, job, job.plan), nbytes_of)


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
    plan, said = Plan(request.recipe.scheme, request.target), str(why)
    if request.check and before <= WHOLE_MODEL_BYTES:
        try:
            Session(output, optimize=False)
        except BadModel as error:
            said += f"; onnxruntime {version()} does not open it: {one_line(str(error))}"
    return Result(output, plan, None, request.recipe, before, after, copied=said)


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
        if not request.check:
            yield "not checked, as the model that it repeats was not"
    if request.is_free and not request.check and not request.recipe.keep_slow and made.plan.those(*COMPUTING):
        what = "kernels may be slower than float, or lose more than they give"
        yield f"nothing was measured: {what}; without --no-check they are weighed"
    here, there = this_machine(), request.profile.machine
    if made.profile and request.like is None and here.isa != there.isa:
        words = f"({there.cpu}), and errors were measured on this one ({here.cpu})"
        yield one_line(f"times are those of another processor {words}")

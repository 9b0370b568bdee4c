"""Step 4: the ranges that a plan needs, from a file, from a run of the model, or from several processes' runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from onnxq import collectors
from onnxq.boundary import require_types
from onnxq.calibration import calibrate, pick_method, resume
from onnxq.calibration.calibrate import Keep, Means, hash_model
from onnxq.calibration.observations import Observations, load_observations, to_json
from onnxq.calibration.resume import EVERY, Every
from onnxq.calibration.shards import calibration_samples, observe_in_shards, shard_count, shards_of
from onnxq.errors import BadRecipe
from onnxq.job import Job
from onnxq.planning.scales import grid_of, values_to_observe, without_unobserved
from onnxq.preference import LEAST_SAMPLES, SEARCHES
from onnxq.runtime import work
from onnxq.samples.source import Data
from onnxq.summaries.ranges import NO_RANGES, Ranges, load_ranges, require_same


@dataclass(frozen=True)
class Effort:
    """What calibration may spend.

    Attributes:
        memory: bytes for observing, besides the model's own; None: 512 MiB.
        jobs: processes on this machine.
        cluster: whose workers calibrate, encode and measure plans, in the words of `cluster.open_engine`; None: this
            process does.
        every: how often progress is saved beside the file of ranges, from which an interrupted run goes on.

    Raises:
        BadRecipe: something of another type.
    """

    memory: int | None = None
    jobs: int = 1
    every: Every = EVERY
    cluster: str | None = None

    def __post_init__(self) -> None:
        require_types(Effort, vars(self))


def find_ranges(job: Job, file: str | Path | None = None, effort: Effort = Effort()) -> Ranges:
    """The ranges that the job's plan needs, calibrated or taken from `file`; `NO_RANGES` if it needs none.

    Raises:
        BadRecipe: there are no data, or `file` is of something else.
    """
    names = values_to_observe(job.model, job.plan)
    if not names:
        return NO_RANGES
    samples = calibration_samples(job) if file is not None else enough_samples(job)
    partial = None if file is None else Path(f"{file}.partial")
    if file is None or not Path(file).exists():
        seen = observe(job, names, samples, effort, partial)
        found = ranges_of(job, seen)
        if file is not None and not _is_there(Path(file), seen):
            job.guard.write_text(Path(file), to_json(found, remembering(job, seen, found)))
        resume.remove(partial)
        return found
    resume.remove(partial)  # a run that was killed after its last step
    key = {"model": hash_model(job.model), "data": samples.hash()}
    stored = load_observations(file)
    if stored is not None and stored.shard:
        raise BadRecipe(
            f"'{file}' holds the ranges of a part of the data: merge all parts by 'onnxq calibrate --merge'"
        )
    if stored is None or (_needs_histogram(job) and not stored.has_histograms):
        return load_ranges(file, **key, method=job.recipe.calibration)
    require_same(file, stored, **key)
    return ranges_of(job, stored)


def enough_samples(job: Job) -> Data:
    """Those that ranges come from where no file is to hold them, which is of all samples: if a run of the model is much
    work, every so many-th one."""
    samples = calibration_samples(job)
    if samples.count < 2 * LEAST_SAMPLES:
        return samples
    stride = SEARCHES[job.recipe.effort].stride(samples.count, work.seconds(job.trace(next(iter(samples)))))
    return samples.shard(1, stride) if stride > 1 else samples


def _is_there(file: Path, seen: Observations) -> bool:
    """Whether another run has left the same in `file` meanwhile."""
    try:
        other = load_observations(file)
    except BadRecipe:
        return False
    return other is not None and (other.model, other.data, other.shard) == (seen.model, seen.data, seen.shard)


def observe(
    job: Job,
    names: list[str],
    samples: Data,
    effort: Effort,
    partial: Path | None,
    shard: tuple[int, int] | None = None,
) -> Observations:
    """A run of the float model over `samples`, or over a shard of them.

    Args:
        partial: where progress is saved; the caller removes it (`resume.remove`) once its result is.
    """

    def start(runs: int) -> None:
        job.progress.start("calibrating", runs, "samples")

    keep = Keep() if job.recipe.calibration == pick_method.AUTO else calibrate.keep_for(job.recipe.calibration)
    with job.environment.engine(effort.cluster, min(effort.jobs, samples.count), "calibrated") as engine:
        is_here = engine is None or engine.cache is None  # where progress is left beside the result
        partial = partial if is_here else None
        count = 1 if engine is None else shard_count(engine, samples.count)
        for path in [partial] if engine is None else resume.parts(partial, count):
            if path is not None:
                job.guard.writes(path, "--ranges or -o", resume.is_progress)
        if engine is not None:
            engine.begin()
            start(samples.count)
            means = Means(memory=effort.memory, checkpoint=partial, every=effort.every)
            return observe_in_shards(engine, job, shards_of(job, names, keep, means), samples, job.progress.advance)
    means = Means(0, effort.memory, partial, effort.every)
    progress = job.progress.advance
    return calibrate.observe(job.model, names, samples, keep, means=means, shard=shard, start=start, progress=progress)


def remembering(job: Job, seen: Observations, found: Ranges) -> Observations:
    """`seen`, with the method that `auto` chose: what is made of the file later is made by the same."""
    return dataclasses.replace(seen, chosen=found.method) if job.recipe.calibration == pick_method.AUTO else seen


def _needs_histogram(job: Job) -> bool:
    method = job.recipe.calibration
    return method == pick_method.AUTO or collectors.get(method).needs_histogram


def ranges_of(job: Job, seen: Observations) -> Ranges:
    """By the method asked for, or by the one with the least error on the samples held back."""
    method = job.recipe.calibration
    if method != pick_method.AUTO:
        return seen.ranges(method, grid_of(job.plan))
    if seen.chosen:
        return seen.ranges(seen.chosen, grid_of(job.plan))
    assert job.data is not None
    if not SEARCHES[job.recipe.effort].compares_calibrations:
        return seen.ranges(pick_method.DEFAULT, grid_of(job.plan))
    candidates = {method: seen.ranges(method, grid_of(job.plan)) for method in collectors.names()}
    plan = without_unobserved(job.model, job.plan, candidates[pick_method.DEFAULT])
    if not values_to_observe(job.model, plan):
        return candidates[pick_method.DEFAULT]
    best = pick_method.least_noise(
        job.model,
        candidates,
        lambda ranges: job.rewritten(plan, ranges),
        job.data.split(job.sampling.held_back)[1],
        job.progress,
        job.trace,
    )
    return candidates[best]

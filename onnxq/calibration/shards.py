"""Calibration by several workers: each observes a shard of the samples, and what they saw is merged.

Extremes and histograms add up exactly, in whatever parts. Moving averages depend on the order of samples, so shards
keep the extremes of each sample, which are few numbers, and the averages are made of these in order.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from numpy.typing import NDArray

from onnxq import cluster
from onnxq.calibration import calibrate
from onnxq.calibration.calibrate import Keep, Means, hash_model
from onnxq.calibration.observations import Observations, from_table, merge
from onnxq.calibration.resume import parts
from onnxq.cluster import Engine, Task
from onnxq.cluster import tasks as worker
from onnxq.errors import BadData, BadRecipe
from onnxq.files import limits, mirror, schemas
from onnxq.files.guard import Guard
from onnxq.job import Environment, Job, open_job
from onnxq.quality.gaps import Gaps
from onnxq.recipe import Recipe
from onnxq.samples.reading import reading_of
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data

#: Shards for each worker of a cluster, so that the slowest one is not waited for long; and samples of one at most.
SHARDS, MOST_SAMPLES = 4, 256


@dataclass(frozen=True)
class OpenedBy:
    """What another process opens the same job by.

    Attributes:
        also, factors: as of the `Job`.
        files, data: which content of the model's files, and of the data, is meant: what a worker has opened stays open
            for the next command, and another file may lie at the same path then.
    """

    model: str
    recipe: Recipe
    target: str
    sampling: Sampling
    also: tuple[str, ...]
    factors: Mapping[str, NDArray]
    files: tuple[tuple[int, int | str], ...]
    data: str


@dataclass(frozen=True)
class Shards:
    """What workers are to observe: everything that decides what they see, and what they may spend."""

    job: OpenedBy
    names: tuple[str, ...]
    keep: Keep
    means: Means


def opened_by(job: Job) -> OpenedBy:
    """The job as another process can open it.

    Raises:
        BadData: other processes cannot open its data.
    """
    source = job.sampling.source
    source = None if source is None else mirror.given(require_openable(source))
    reading = reading_of(job.sampling.preprocessing).openable()
    sampling = replace(job.sampling, source=source, preprocessing=reading)
    files, data = tuple(map(mirror.identity_of, job.files)), "" if job.data is None else job.data.hash()
    place, target = mirror.given(job.path.absolute()), job.target.name
    return OpenedBy(place, job.recipe, target, sampling, job.also, job.factors, files, data)


def open_again(by: OpenedBy) -> Job:
    """The job, on the worker; the last one stays open for the next task."""
    return _open_again(pickle.dumps(by))


@functools.lru_cache(1)
def _open_again(by: bytes) -> Job:
    what: OpenedBy = pickle.loads(by)
    model, _, source = mirror.read_and_written(what.model, None, what.sampling.source)
    sampling = replace(what.sampling, source=source)
    job = open_job(model, what.recipe, what.target, sampling, Environment(guard=Guard()), what.also)
    return job.scaled(what.factors) if what.factors else job


def observe_in_shards(
    engine: Engine, job: Job, whole: Shards, samples: Data, progress: Callable[[int], None]
) -> Observations:
    """What `calibrate.observe` finds, from an engine's workers.

    Raises:
        OnnxqError: what one of them raised; the others are stopped.
    """
    cluster.require_readable(engine, *job.files)
    count = shard_count(engine, samples.count)
    memory = None if whole.means.memory is None else whole.means.memory // engine.workers
    model, data, names = hash_model(job.model), samples.hash(), list(whole.names)
    # Of large weights the model's hash knows some numbers only, and that of the data nothing of what is held back.
    factors = {name: worker.digest_of(each.tobytes()) for name, each in whole.job.factors.items()}
    identity = {"model": model, "files": whole.job.files, "factors": factors, "data": data, "samples": samples.count}
    blank = {name: replace(whole.keep, trails=True).empty(name) for name in names}
    made = []
    for number, path in enumerate(parts(whole.means.checkpoint, count), 1):
        own = replace(whole, means=replace(whole.means, memory=memory, checkpoint=path))
        content = {**identity, "names": names, **dataclasses.asdict(whole.keep), "shard": [number, count]}
        size = len(range(number - 1, samples.count, count))
        wanted = Observations(model, data, size, blank, (number, count))
        name, read = cluster.named(observe_shard, content), functools.partial(_read, own.job, wanted, samples.gaps)
        made.append(Task(observe_shard, (own, number, count), name, f"shard {number} of {count}", size, read=read))
    found = zip(made, cluster.results(engine, made, progress), strict=True)
    return merge([(task.what, seen) for task, seen in found])


def shard_count(engine: Engine, samples: int) -> int:
    """Into how many shards so many samples are cut."""
    if engine.cache is None:  # processes here, each of which leaves its own progress
        return min(engine.workers, samples)
    return min(samples, max(SHARDS * max(1, engine.workers), math.ceil(samples / MOST_SAMPLES)))


def observe_shard(whole: Shards, number: int, count: int) -> bytes:
    """On a worker: what is seen of every `count`-th sample."""
    job = open_again(whole.job)
    samples = calibration_samples(job)
    share = _Share(len(range(number - 1, samples.count, count)))
    means = replace(whole.means, threads=worker.threads())
    how = {"start": share.start, "progress": share.progress}
    seen = calibrate.observe(job.model, whole.names, samples, whole.keep, means=means, shard=(number, count), **how)
    gaps = samples.gaps
    met = {"looked_at": [*gaps.looked_at.items()], "found": [*gaps.found.items()]}
    return json.dumps({**seen.to_dict(), **met}).encode()


class _Share:
    """Progress of a task in samples, of which each may be run several times."""

    def __init__(self, size: int) -> None:
        self._size, self._runs, self._done, self._told = size, max(1, size), 0, 0

    def start(self, runs: int) -> None:
        self._runs = max(1, runs)

    def progress(self, runs: int) -> None:
        self._done += runs
        now = self._size * self._done // self._runs
        worker.advance(now - self._told)
        self._told = now


def _read(by: OpenedBy, wanted: Observations, gaps: Gaps, result: bytes, who: str) -> Observations:
    """What `observe_shard` wrote.

    Args:
        wanted: the same, before anything was seen.
        gaps: takes in what was met there of samples that are not finite.
    """
    try:
        table = limits.parse_json(result.decode())
        seen, met = from_table(table), schemas.checked(table, schemas.GapsFile)
    except ValueError:
        raise cluster.unlike("what it saw", who) from None
    if seen.model != wanted.model:
        where = "put the same file where all machines see it, and leave it there until the command ends"
        raise BadRecipe(f"{who} reads another model at '{by.model}' than this process: {where}")
    if seen.data != wanted.data:
        where = "they must be the same in all; start the worker anew if a function that gives them was changed"
        raise BadRecipe(f"{who} gets other samples of --data '{by.sampling.source}' than this process: {where}")
    if (seen.shard, seen.samples, _kinds(seen)) != (wanted.shard, wanted.samples, _kinds(wanted)):
        raise cluster.unlike("what it saw of the shard and the activations that it was asked for", who)
    gaps.take_in(Gaps(dict(met.looked_at), dict(met.found)))
    return seen


def _kinds(seen: Observations) -> dict[str, tuple[object, ...]]:
    """What is kept of each activation."""
    return {
        name: (each.momentum, each.axis, each.histogram is None, each.trail is None)
        for name, each in seen.summaries.items()
    }


def calibration_samples(job: Job) -> Data:
    """All samples but those that are held back to measure with.

    Raises:
        BadRecipe: the job has no data.
    """
    if job.data is None:
        raise BadRecipe("the plan quantizes activations with fixed ranges, which come from calibration: give --data")
    return job.data.split(job.sampling.held_back)[0]


def shards_of(job: Job, names: Sequence[str], keep: Keep, means: Means) -> Shards:
    """
    Raises:
        BadData: other processes cannot open the job's data.
    """
    return Shards(opened_by(job), tuple(names), keep, means)


def require_openable(data: object) -> str:
    """`data` as other processes can open it.

    Raises:
        BadData: they cannot.
    """
    if isinstance(data, (str, Path)):
        return str(Path(data).absolute() if Path(data).exists() else data)
    raise BadData("several processes can only share data that each can open: a file, a folder or module:function")

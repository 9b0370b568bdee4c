"""Samples in memory, several of them at a time where the model takes that."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.errors import BadData, OutOfMemory
from onnxq.job import Job
from onnxq.runtime.session import Feed
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import hash_of
from onnxq.training.graph.module import GraphModule
from onnxq.training.labels import labels_of
from onnxq.training.settings import Settings

#: How near the outputs of several samples at once have to be to those of each.
NEAR = 1e-3


@dataclass(frozen=True)
class Batch:
    """Inputs by name, and labels if there are any; each of several samples, joined along their first axis."""

    feed: Feed
    labels: NDArray | None
    count: int


@dataclass(frozen=True)
class Samples:
    """What is trained on, and what is kept to see when to stop.

    Attributes:
        labels: their name among the arrays of a sample; None: there are none.
        joined: whether several samples can be run at once.
    """

    train: list[Feed]
    held_back: list[Feed]
    labels: str | None
    joined: bool

    def batch(self, chosen: Sequence[Feed]) -> list[Batch]:
        """These samples at once, or one by one where they cannot be joined."""
        groups = [list(chosen)] if self.joined and _are_alike(chosen) else [[each] for each in chosen]
        return [self._joined(group) for group in groups]

    def _joined(self, group: list[Feed]) -> Batch:
        names = [name for name in group[0] if name != self.labels]
        feed = {name: group[0][name] if len(group) == 1 else np.concatenate([x[name] for x in group]) for name in names}
        labels = None
        if self.labels is not None:
            labels = np.concatenate([np.atleast_1d(labels_of(x[self.labels], self.labels)) for x in group])
        return Batch(feed, labels, len(group))

    def nbytes(self) -> int:
        """What they take."""
        return sum(x.nbytes for feed in (*self.train, *self.held_back) for x in feed.values())


def order(count: int, seed: int) -> Iterator[list[int]]:
    """The numbers of all samples in a random order, again and again; the same ones for a seed."""
    epoch = 0
    while True:
        yield list(np.random.default_rng((seed, epoch)).permutation(count))
        epoch += 1


def batches_of(count: int, batch: int, seed: int, skipped: int = 0) -> Iterator[list[int]]:
    """The numbers of the samples of each step, from step `skipped` on."""
    size, step, kept = min(batch, count), 0, list[int]()
    for numbers in order(count, seed):
        kept += numbers
        while len(kept) >= size:
            if step >= skipped:
                yield kept[:size]
            kept, step = kept[size:], step + 1


def open_samples(job: Job, settings: Settings, teacher: GraphModule, room: float = math.inf) -> Samples:
    """The job's samples without those that are held back.

    Args:
        room: bytes that they may take.

    Raises:
        BadData: there are none, or they do not fit.
        OutOfMemory: they take more.
    """
    sampling = _all_of(job, settings)
    data = sampling.open_labeled(job.model, job.path) if settings.labels else sampling.open(job.model, job.path)
    assert data is not None and job.data is not None
    kept_out = {_digest(feed, settings.labels) for feed in job.data.split(job.sampling.held_back)[1]}
    job.progress.start("reading samples", settings.samples, "samples")
    every, held, nbytes = list[Feed](), list[Feed](), 0
    for feed in data:
        nbytes += sum(x.nbytes for x in feed.values())
        if nbytes > room:  # they may have no end
            raise OutOfMemory("the samples leave no room to train: say how many there may be, --samples")
        is_kept = _digest(feed, settings.labels) in kept_out
        (held if is_kept else every).append(feed)
        job.progress.advance(1)
        if settings.samples is not None and len(every) >= settings.samples and len(held) >= len(kept_out):
            break
    if not every or not held:  # a single sample is both
        every = held = every or held
    if not every:
        raise BadData("there are no samples to train on")
    if settings.samples is not None:
        every = every[: settings.samples]
    made = Samples(every, held, settings.labels, joined=False)
    return Samples(every, held, settings.labels, joined=_can_be_joined(teacher, made))


def _all_of(job: Job, settings: Settings) -> Sampling:
    return dataclasses.replace(job.sampling, limit=None, seed=None, labels=settings.labels)


def _digest(feed: Feed, labels: str | None) -> bytes:
    return hash_of({name: x for name, x in feed.items() if name != labels})


def _are_alike(feeds: Sequence[Feed]) -> bool:
    shapes = [{name: x.shape[1:] for name, x in feed.items() if x.ndim} for feed in feeds]
    return all(each == shapes[0] for each in shapes) and all(x.ndim for feed in feeds for x in feed.values())


def _can_be_joined(teacher: GraphModule, samples: Samples) -> bool:
    """Whether the model gives for two samples at once what it gives for each."""
    some = (samples.train * 2)[:2]
    if not _are_alike(some) or any(len(x) != len(y) for feed in some for x in feed.values() for y in feed.values()):
        return False
    whole = Samples(samples.train, samples.held_back, samples.labels, joined=True)
    try:
        with torch.no_grad():
            both = teacher(whole.batch(some)[0].feed)
            single = [teacher(batch.feed) for batch in samples.batch(some)]
    except Exception:  # a shape that is fixed in the graph
        return False
    return all(_is_joined(x, [each[name] for each in single]) for name, x in both.items())


def _is_joined(both: Any, single: list[Any]) -> bool:
    if not isinstance(both, torch.Tensor) or not both.dim() or any(not x.dim() for x in single):
        return False
    if both.shape[0] != sum(x.shape[0] for x in single) or both.shape[1:] != single[0].shape[1:]:
        return False
    parts = torch.cat(single)
    scale = float(parts.abs().max()) if parts.numel() else 0.0
    return bool(((both - parts).abs().to(torch.float64) <= NEAR * scale).all())

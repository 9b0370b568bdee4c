"""Which channels between layers are scaled, and by which factors: those that rows held back speak for."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxq import algorithms, formats
from onnxq.algorithms.channels import CHANNEL_WAYS, ChannelSizes
from onnxq.calibration.gather_evidence import needed
from onnxq.calibration.layers.channel_trial import ChannelTrial
from onnxq.calibration.look_at_inputs import runner
from onnxq.calibration.memory import in_groups
from onnxq.errors import amount
from onnxq.formats import Granularity
from onnxq.job import Job
from onnxq.model import graph
from onnxq.model.channel_places import ChannelPlace, channel_places
from onnxq.model.layer_inputs import LayerInput, Patches
from onnxq.plan import Choice, Method
from onnxq.summaries.gram import finite_rows, spread_out

#: Rows that factors are fitted on, and as many held back; samples that are looked at.
ROWS, SAMPLES = 512, 32
#: Share of the error that has to remain at most, on both kinds of rows, for a place to be scaled.
GAIN = 0.8
#: Times the largest number that was seen of a channel up to which a Clip lets numbers pass after it was scaled.
HEADROOM = 2.0
#: Share of the largest number of its type to which scaling may raise the largest activation.
ROOM = 1 / 4


@dataclass(frozen=True)
class Balanced:
    """What was done.

    Attributes:
        job: with the model scaled.
        ways: by the word of the way in which factors were found, at how many places.
        error: what was left of these layers' errors on rows held back, in the middle.
    """

    job: Job
    ways: Mapping[str, int] = field(default_factory=dict)
    error: float = 1.0

    def __str__(self) -> str:
        words = ", ".join(f"{word} at {amount(count, 'place')}" for word, count in self.ways.items())
        return f"channels were scaled between layers: {words}, where {self.error:.0%} of the error was left"


def balanced(job: Job, memory: int | None = None) -> Balanced:
    """The job with channels scaled wherever that brings the outputs of quantized layers nearer to float ones.

    What the model computes in float stays, up to rounding. Without data nothing is scaled.

    Args:
        memory: bytes for what is looked at; places that need more are looked at in turns. None: 512 MiB.

    Raises:
        BadModel, BadData: the model or the data fail on some sample.
    """
    every = channel_places(job.model) if job.data is not None else []
    by_data = needed(job) if every else {}
    ways = {place: way for place in every if (way := _way(job, place))}
    if not ways:
        return Balanced(job)
    factors, left = {}, []
    for group in in_groups(ways, _nbytes, memory):
        for place, seen in _seen(job, group).items():
            if not seen.is_whole:
                continue
            bits = 8 if ways[place] == "smoothquant" else None
            trial = _trial(job, place, seen, bits)
            found = _best(trial, ways[place], seen, place)
            if found is not None and any(by_gptq := [reader.weight in by_data for reader in place.readers]):
                found = _best(dataclasses.replace(trial, by_data=by_gptq), ways[place], seen, place, few=True)
            if found is not None:
                factors[place] = found[0]
                left.append(found[1])
    if not factors:
        return Balanced(job)
    scaled = job.scaled({place.value: each for place, each in factors.items()})
    return Balanced(scaled, Counter(ways[place] for place in factors), float(np.median(left)))


def _nbytes(place: ChannelPlace) -> int:
    """What its rows take, those held back too."""
    return sum(8 * ROWS * each.rows.groups * each.rows.k for each in {reader.seen: None for reader in place.readers})


def _choices(job: Job, place: ChannelPlace) -> list[Choice | None]:
    return [job.plan.choices.get(reader.scaled.node) for reader in place.readers]


def _way(job: Job, place: ChannelPlace) -> str:
    """The way that the plan for the layers behind a place calls for; empty: none."""
    choices = [choice for choice in _choices(job, place) if choice is not None and choice.format is not None]
    named = [choice.algorithm_by(job.recipe) for choice in choices]
    if len(choices) < len(place.readers) or algorithms.PLAIN in named:
        return ""  # who names rtn wants the codes of these very weights
    if place.is_bounded and not all(choice.method is Method.STATIC for choice in choices):
        return ""  # what reads integers of fixed ranges does not get any larger numbers, as it is
    if all(choice.method in (Method.STATIC, Method.DYNAMIC) for choice in choices):
        return "smoothquant"
    if any(choice.method in (Method.STATIC, Method.DYNAMIC) for choice in choices):
        return ""
    few = all(formats.get(choice.format or "").bits <= 4 for choice in choices)
    return "awq" if few else ""


@dataclass
class _Seen:
    """What the samples say of a place.

    Attributes:
        low, high, total: [channels], over `count` numbers of each.
        most: the largest number that scaling may make of them.
        rows, held_back: as each of its readers sees it.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    total: NDArray[np.float64]
    count: int = 0
    most: float = math.inf
    rows: dict[LayerInput, list[NDArray[np.float32]]] = field(default_factory=dict)
    held_back: dict[LayerInput, list[NDArray[np.float32]]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether there is something of both kinds."""
        return bool(self.rows and self.held_back)

    def add(self, x: NDArray) -> None:
        """Numbers [any, channels]."""
        self.most = ROOM * float(np.finfo(x.dtype).max)
        x = x[np.isfinite(x).all(axis=1)].astype(np.float64)
        if len(x):
            self.low, self.high = np.minimum(self.low, x.min(axis=0)), np.maximum(self.high, x.max(axis=0))
            self.total, self.count = self.total + np.abs(x).sum(axis=0), self.count + len(x)


def _seen(job: Job, places: list[ChannelPlace]) -> dict[ChannelPlace, _Seen]:
    assert job.data is not None
    samples, held_back = job.data.split(job.sampling.held_back)
    count = min(SAMPLES, samples.count)
    job.progress.start("looking at channels", count + held_back.count, "samples")
    run = runner(job, list(dict.fromkeys(place.value for place in places)))
    found = {
        place: _Seen(np.zeros(place.channels), np.zeros(place.channels), np.zeros(place.channels)) for place in places
    }
    for values in itertools.islice(run(samples), count):
        for place, seen in _of_those(found, values):
            x = values[place.value]
            seen.add(np.moveaxis(x, 1 if _is_convolved(place) else -1, -1).reshape(-1, place.channels))
            _keep(seen.rows, place, x, count, -(-ROWS // count))
    for values in run(held_back):
        for place, seen in _of_those(found, values):
            _keep(seen.held_back, place, values[place.value], count, -(-ROWS // held_back.count))
    return found


def _keep(
    rows: dict[LayerInput, list[NDArray[np.float32]]], place: ChannelPlace, x: NDArray, samples: int, most: int
) -> None:
    """At most so many rows of one of `samples`, as each of the readers sees them."""
    for seen in {reader.seen: None for reader in place.readers}:
        rows.setdefault(seen, []).append(spread_out(finite_rows(seen.rows(x, samples)), most))


def _of_those(
    found: Mapping[ChannelPlace, _Seen], values: Mapping[str, NDArray]
) -> Iterator[tuple[ChannelPlace, _Seen]]:
    yield from ((place, seen) for place, seen in found.items() if place.value in values)


def _is_convolved(place: ChannelPlace) -> bool:
    return isinstance(place.readers[0].seen.rows, Patches)


def _trial(job: Job, place: ChannelPlace, seen: _Seen, bits: int | None) -> ChannelTrial:
    """Of the layers behind a place, as the plan has them."""
    constants = {name: value for body in graph.graphs(job.model) for name, value in body.initializers.items()}
    rows, matrices, weight_formats = [], [], []
    for reader, choice in zip(place.readers, _choices(job, place), strict=True):
        assert choice is not None and choice.format is not None
        w = constants[reader.weight].const_value
        assert w is not None
        rows.append((np.concatenate(seen.rows[reader.seen]), np.concatenate(seen.held_back[reader.seen])))
        groups, k = rows[-1][0].shape[1:]
        turned = np.moveaxis(w.numpy(), reader.seen.channel, 0).astype(np.float32)
        matrices.append(turned.reshape(groups, -1, k))
        how = Granularity(0) if choice.block is None else Granularity(1, choice.block)
        weight_formats.append((formats.get(choice.format), how))
    return ChannelTrial(place.channels, matrices, weight_formats, rows, (seen.low, seen.high), bits)


def _best(
    trial: ChannelTrial, way: str, seen: _Seen, place: ChannelPlace, *, few: bool = False
) -> tuple[NDArray[np.float32], float] | None:
    """The factors of least error on the worse kind of rows, and what is left of it; None: none is worth it.

    Args:
        few: try every third strength only.
    """
    sizes = ChannelSizes(np.maximum(-seen.low, seen.high), seen.total / max(1, seen.count), trial.largest_weights)
    factors, strengths = CHANNEL_WAYS[way]
    before = trial.errors(np.ones(trial.channels, np.float32))
    best: tuple[NDArray[np.float32], float] | None = None
    for strength in strengths[::-3] if few else strengths:
        tried = _within(place, factors(sizes, strength), seen)
        if sizes.largest.max() / tried.min() > seen.most:
            continue  # a quiet channel may be the sum of what is as large as the loudest
        left = max(after / old if old else 1.0 for after, old in zip(trial.errors(tried), before, strict=True))
        if left < (GAIN if best is None else best[1]):
            best = tried, left
    return best


def _within(place: ChannelPlace, factors: NDArray[np.float32], seen: _Seen) -> NDArray[np.float32]:
    """The factors with which a Clip in front of the place cuts off nothing else than before: 1 for channels of which it
    does cut, or nearly, and for those that were never anything but 0."""
    if not place.is_bounded:
        return factors
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = [
            np.maximum(x, 0) / bound for x, bound in ((-seen.low, -place.low), (seen.high, place.high)) if bound > 0
        ]
    if not sides:  # it leaves nothing but 0
        return np.ones_like(factors)
    filled = np.max(sides, axis=0)  # the part of the Clip's range that each channel takes
    is_free = (filled > 0) & (filled * HEADROOM <= 1)
    if not is_free.any():
        return np.ones_like(factors)
    scaled = factors * ((filled / factors)[is_free].max() / filled.max())
    return np.where(is_free, np.maximum(scaled, HEADROOM * filled), 1).astype(np.float32)

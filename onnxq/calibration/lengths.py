"""Whether ranges found at one length hold at others: the user's samples cut and repeated, and ranges that fit them too.

Data often come in one length (padded texts, windows of sound), and activations do not look the same at others: the
first word of a text is where attention leaves what it has no use for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration import calibrate
from onnxq.calibration.calibrate import Keep, Means
from onnxq.calibration.turns import turns_of
from onnxq.errors import BadModel
from onnxq.job import Job
from onnxq.made_up.dims import Dims
from onnxq.made_up.roles import Part, Role, parts_of
from onnxq.made_up.scout import scout
from onnxq.made_up.steps import sizes_of
from onnxq.quality import Quality, compare_outputs, unrepeatable
from onnxq.runtime.process.trial import signal_that_ends
from onnxq.runtime.session import Feed, Input, Session
from onnxq.samples.source import Data
from onnxq.samples.trials import GIVEN, Trial, Trials
from onnxq.summaries.ranges import Range, Ranges

#: Samples that are looked at for their sizes, and those that are cut or repeated to sizes that are not short.
LOOKED_AT, CHANGED = 32, 2
#: dB that other lengths may lose against the data's own before wider ranges are tried, and that these must gain.
LOST, GAINED = 3.0, 1.0


@dataclass(frozen=True)
class Axis:
    """A dimension that the model leaves free and of which the data know one size."""

    input: Input
    axis: int
    symbol: str
    size: int

    def __str__(self) -> str:
        return f"axis {self.axis} ('{self.symbol}') of input '{self.input.name}' is {self.size} in all of the data"


def with_other_lengths(job: Job, session: Session, trials: Trials, seen: Sequence[Feed]) -> Trials:
    """`trials` with their samples at other sizes of those free dimensions that have one size in the data, and at other
    numbers of turns; and further ones: two in one batch where all have one row, else a row.

    Args:
        session: a `scout` of the job's model.
        seen: samples that tell which sizes the data have.
    """
    others = _Others(job, session, [*seen, *trials.feeds])
    given = [t.feed for t in trials.samples if t.label == GIVEN]
    found = [Trial(label, feed) for label, feed in others.of(given)]
    further = tuple(Trial(label, feed) for label, feed in others.batches(given))
    trials = dataclasses.replace(trials, further=(*trials.further, *further))
    advice = "checked at other {} too; if the model will see such, give samples of these as well"
    kinds: dict[str, Sequence[object]] = {"sizes": others.axes, "numbers": others.turns}
    notes = [f"{'; '.join(map(str, one))}: {advice.format(what)}" for what, one in kinds.items() if one]
    return trials.joined(found, notes if found else [])


def fit_ranges(
    job: Job,
    rewrite: Callable[[Ranges], ir.Model],
    names: Sequence[str],
    found: Ranges,
    trials: Trials,
    seen: Sequence[Feed],
) -> Ranges:
    """`found`, or those ranges widened by what is seen at other lengths, if these lose much and it helps them.

    Args:
        rewrite: carries the whole plan out with some ranges.
        names: of the values that have ranges.
        trials: to judge by, some of them at other lengths.
        seen: samples to cut and repeat.
    """
    session = Session(job.model, threads=0)
    wanted = [session.run(feed) for feed in trials.feeds]
    random = unrepeatable(session.outputs, wanted[0], session.run(trials.feeds[0]))

    def contrasts(ranges: Ranges) -> Mapping[str, float]:
        return _quality(Session(rewrite(ranges), threads=0), wanted, trials, random).contrasts()

    before = contrasts(found)
    if min(before.values(), default=0.0) > before.get(GIVEN, 0.0) - LOST:
        return found
    others = _Others(job, scout(job.model, job.path), seen).of(seen)
    reads: list[Callable[[], Feed]] = [functools.partial(dict, feed) for _, feed in others]
    if not reads:
        return found
    data = Data("the data at other lengths", lambda: iter(reads))
    wide = _union(found, _minmax(job.model, names, data))
    after = contrasts(wide)
    return wide if min(after.values()) > min(before.values()) + GAINED else found


class _Others:
    """Samples at other sizes of the dimensions (`axes`, and of the batch `rows`) that have one size in `seen`, and at
    other numbers of `turns`."""

    def __init__(self, job: Job, session: Session, seen: Sequence[Feed]) -> None:
        self._job = job
        self._session = session
        self._parts = parts_of(job.model, session.inputs)
        self._dims = Dims(session.inputs)
        single = _single(self._dims, session.inputs, seen)
        self.axes = [axis for axis in single if axis.symbol in self._dims.rest and axis.size > 1]
        self.turns = turns_of(job.model, seen)
        self._size = {axis.symbol: axis.size for axis in single}
        self.rows = [axis for axis in single if axis.symbol not in self._dims.rest or (axis.size, axis.axis) == (1, 0)]

    def of(self, feeds: Sequence[Feed]) -> Iterator[tuple[str, Feed]]:
        """(at which sizes, sample), those that the model runs; fewer of them the longer they are."""
        made = dict(self._at_sizes(feeds)) if self.axes else {}
        made |= {
            f"the data at {turns.input} = {count}": [
                turns.at(count, feed) for feed in (feeds if count < turns.count else feeds[:CHANGED])
            ]
            for turns in self.turns
            for count in turns.others
        }
        if self._crashes([feed for group in made.values() for feed in group]):
            made = {label: group for label, group in made.items() if not self._crashes(group)}
        yield from ((label, feed) for label, group in made.items() for feed in group if _runs(self._session, feed))

    def batches(self, feeds: Sequence[Feed]) -> Iterator[tuple[str, Feed]]:
        """(what it is, sample) of another batch than the data's, if these have one and the model runs another."""
        sizes = {axis.symbol: axis.size for axis in self.rows}
        if not sizes or not feeds:
            return
        if max(sizes.values()) > 1:
            label, made = "one row of the data", _resized(self._dims, self._parts, feeds[0], dict.fromkeys(sizes, 1))
        else:
            found = (_paired(self._dims, self._parts, feeds[0], other, {*sizes}) for other in (*feeds[1:], feeds[0]))
            label, made = "two of the data in one batch", next((feed for feed in found if feed is not None), None)
        if made is not None and _runs(self._session, made):
            yield label, made

    def _at_sizes(self, feeds: Sequence[Feed]) -> Iterator[tuple[str, list[Feed]]]:
        for sizes in _other_sizes(self.axes, self._parts):
            is_short = all(n < self._size[symbol] / 4 for symbol, n in sizes.items())
            label = "the data at " + ", ".join(f"{symbol} = {n}" for symbol, n in sizes.items())
            changed = (_resized(self._dims, self._parts, f, sizes) for f in (feeds if is_short else feeds[:CHANGED]))
            yield label, [feed for feed in changed if feed is not None]

    def _crashes(self, feeds: Sequence[Feed]) -> bool:
        """Whether onnxruntime ends the process at sizes for which the model was not made: a kernel may divide by what
        they leave. Sessions that are open have no threads in a process that is forked off."""

        def work() -> None:
            session = scout(self._job.model, self._job.path)
            for feed in feeds:
                _runs(session, feed)

        return bool(feeds) and signal_that_ends(work) != ""


def _minmax(model: ir.Model, names: Sequence[str], data: Data) -> Ranges:
    return calibrate.observe(model, names, data, Keep(histograms=False), means=Means(threads=0)).ranges("minmax")


def _union(found: Ranges, seen: Ranges) -> Ranges:
    values: dict[str, Range] = {
        name: r.union(seen.values[name]) if name in seen.values else r for name, r in found.values.items()
    }
    return dataclasses.replace(found, values=values)


def _quality(session: Session, wanted: Sequence[list[NDArray]], trials: Trials, random: frozenset[str]) -> Quality:
    return compare_outputs(session.outputs, wanted, map(session.run, trials.feeds), random, trials.labels)


def _single(dims: Dims, inputs: Sequence[Input], feeds: Sequence[Feed]) -> list[Axis]:
    """The free dimensions but pasts that have one size in `feeds`."""
    found: dict[str, Axis] = {}
    sizes: dict[str, set[int]] = {}
    for i in inputs:
        for axis in range(len(i.shape or ())):
            symbols = dims.symbols_at(i, axis)
            if len(symbols) == 1 and symbols[0] not in dims.past:
                sizes.setdefault(symbols[0], set()).update(feed[i.name].shape[axis] for feed in feeds)
                found.setdefault(symbols[0], Axis(i, axis, symbols[0], feeds[0][i.name].shape[axis]))
    return [axis for symbol, axis in found.items() if len(sizes[symbol]) == 1]


def _other_sizes(axes: Sequence[Axis], parts: Sequence[Part]) -> list[dict[str, int]]:
    """One, half and double of all; and one of each alone that may be the batch of another, whose rows all count. Of
    pictures only half and double, in steps of 32 where they are large."""
    pictures = {part.name for part in parts if part.role is Role.IMAGE}
    if any(axis.input.name in pictures for axis in axes):
        return [{a.symbol: _rounded(a.size * f) for a in axes} for f in (0.5, 2.0)]
    lengths = [{a.symbol: max(1, round(a.size * f)) for a in axes} for f in (0.0, 0.5, 2.0)]
    first = {a.input.name for a in axes if a.axis == 0}
    lengths[1:1] = [{a.symbol: 1} for a in axes if a.input.name in first]
    return [sizes for i, sizes in enumerate(lengths) if sizes not in lengths[:i]]


def _rounded(size: float) -> int:
    return max(1, round(size / 32)) * 32 if size >= 32 else max(1, round(size))


def _resized(dims: Dims, parts: Sequence[Part], feed: Feed, sizes: Mapping[str, int]) -> Feed | None:
    """A sample cut, or repeated, to other sizes; None if its own sizes contradict each other."""
    everything = {**sizes_of(dims, parts, feed), **sizes}
    made: Feed = {}
    for part in parts:
        x = feed[part.name]
        if any(symbol not in everything for axis in range(x.ndim) for symbol in dims.symbols_at(part.input, axis)):
            return None
        for axis in range(x.ndim):
            if set(dims.symbols_at(part.input, axis)) & sizes.keys():
                x = _stretched(x, axis, max(0, dims.size(part.input, axis, everything)), part.role)
        made[part.name] = x
    return made


def _paired(dims: Dims, parts: Sequence[Part], a: Feed, b: Feed, rows: set[str]) -> Feed | None:
    """Two samples as one, along the dimensions that count `rows`; None if they differ in others."""
    made: Feed = {}
    for part in parts:
        x, y = a[part.name], b[part.name]
        axes = [axis for axis in range(x.ndim) if rows & {*dims.symbols_at(part.input, axis)}]
        try:
            made[part.name] = np.concatenate([x, y], axes[0]) if axes else x
        except ValueError:
            return None
    return made


def _stretched(x: NDArray, axis: int, size: int, role: Role) -> NDArray:
    if role is Role.POSITIONS and 0 < x.shape[axis] < size:  # they go on, where all else begins again
        start = np.take(x, [0], axis)
        steps = np.arange(size).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return (start + steps).astype(x.dtype)
    return np.take(x, np.arange(size) % max(1, x.shape[axis]), axis)


def _runs(session: Session, feed: Feed) -> bool:
    """Whether the float model takes a sample and makes numbers of it."""
    try:
        outputs = session.run(feed)
    except BadModel:
        return False
    floats = [x for x in outputs if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    return all(x.size and np.isfinite(x).any() for x in floats)

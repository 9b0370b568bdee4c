"""The model runs on samples, and what each layer gets is summed up: sums of products, and rows of samples held back.

A model larger than what observing may take is run in pieces, all samples through each before the next one: so neither
the memory nor the number of passes over the data grows with it.

What was seen is left beside the result from time to time, so that a run that was killed goes on from there: a file for
each group of inputs that are looked at together.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnxq.calibration import resume
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.layers.pass_samples import CannotBeCut, FloatWalk
from onnxq.calibration.memory import bytes_for, in_groups, whole_session
from onnxq.calibration.resume import Every
from onnxq.errors import BadRecipe
from onnxq.files import faults, staging
from onnxq.job import Job
from onnxq.model.layer_inputs import LayerInput, readers
from onnxq.model.pieces import cut
from onnxq.model.weights import find_weights
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.runtime.session import Feed
from onnxq.samples.prefetch import prefetch
from onnxq.samples.source import Data
from onnxq.summaries.evidence import Index, add_index
from onnxq.summaries.evidence_parts import Seen, open_part, write_part
from onnxq.summaries.gram import HELD_ROWS

#: Progress is written at most so often that it takes this share of the time.
SHARE = 0.05


def partial_of(file: Path) -> Path:
    """What the files of progress beside `file` are called after."""
    return file.with_name(f"{file.name}.partial")


@dataclass(frozen=True)
class Looking:
    """One run over the samples of a job, or over a shard of them.

    Attributes:
        effort: what observing may take; inputs that need more memory are looked at in turns, the samples gone through
            once for each turn.
        index: of what is to be seen.
        partial: the files of progress are called after this; None: there are none.
    """

    job: Job
    effort: Effort
    index: Index
    partial: Path | None = None

    def at(self, inputs: Mapping[str, LayerInput], file: Path) -> None:
        """Leave what is seen of these inputs in `file`.

        Args:
            inputs: by the name that the index has for each.

        Raises:
            BadModel, BadData: the model or the data fail on some sample.
            BadOutput: progress cannot be written.
        """
        if self.job.nbytes > bytes_for(self.effort.memory):
            with contextlib.suppress(CannotBeCut), staging.scratch() as folder:
                return self._leave(file, inputs, list(self._in_pieces(inputs, folder)))
            file.unlink(missing_ok=True)
        return self._leave(file, inputs, [self._turn(names, inputs) for names in self._groups(inputs, inputs)])

    def _leave(self, file: Path, inputs: Mapping[str, LayerInput], turns: Sequence[_Turn]) -> None:
        job, total = self.job, sum(self._counts)
        looks = [turn for turn in turns if turn.names]
        paths = resume.parts(self.partial, len(looks))
        for place in filter(None, paths):
            job.guard.writes(place, "--evidence", is_progress)
        job.progress.start("looking at layers", len(looks) * total, "samples")
        left = iter(paths)
        for turn in turns:
            if not turn.names:
                collections.deque(turn.values(total), maxlen=0)
                continue
            saved = _Saved(next(left), msgspec.structs.replace(self.index, inputs=turn.names), self.effort.every)
            here = {name: inputs[name] for name in turn.names}
            for name, each in self._seen(here, turn, saved, is_last=turn is looks[-1]).items():
                each.add_to(file, self.index.inputs.index(name), is_part=self.index.shard is not None)
        assert job.data is not None
        job.data.require_numbers()
        add_index(file, self.index)

    def _groups(self, names: Iterable[str], inputs: Mapping[str, LayerInput]) -> list[list[str]]:
        return in_groups(names, lambda name: nbytes(inputs[name]), self.effort.memory)

    def _turn(self, names: list[str], inputs: Mapping[str, LayerInput]) -> _Turn:
        """These inputs, while the whole model runs."""
        job, (samples, held_back) = self.job, self._samples

        def values(first: int) -> Iterator[dict[str, NDArray]]:
            if first < samples.count + held_back.count:
                rest = samples.after(first), held_back.after(max(0, first - samples.count))
                wanted = list(dict.fromkeys(inputs[name].value for name in names))
                yield from runner(job, wanted)(itertools.chain(*rest))

        return _Turn(names, values)

    def _in_pieces(self, inputs: Mapping[str, LayerInput], folder: Path) -> Iterator[_Turn]:
        """What is looked at in each piece of the model, which is cut at every weight, so that none is large."""
        model, places = self.job.model, readers(self.job.model)
        walk = FloatWalk(model, self._samples, self.effort.memory, folder)
        pieces = [
            (piece, [name for name, each in inputs.items() if any(places[each] is node for node in nodes)])
            for piece, nodes in cut(model, [weight.node for weight in find_weights(model)])
        ]
        last = max(number for number, (_, names) in enumerate(pieces) if names)
        for number, (piece, here) in enumerate(pieces[: last + 1]):
            groups = self._groups(here, inputs) or [[]]
            for names in groups:
                wanted = list(dict.fromkeys(inputs[name].value for name in names))
                goes_on = number < last and names is groups[-1]
                yield _Turn(names, functools.partial(walk.through, piece, wanted, goes_on=goes_on), in_pieces=True)

    @property
    def _samples(self) -> tuple[Data, Data]:
        """Those that sums are of, and those that are held back."""
        assert self.job.data is not None
        samples, held_back = self.job.data.split(self.job.sampling.held_back)
        if self.index.shard is None:
            return samples, held_back
        return samples.shard(*self.index.shard), held_back.shard(*self.index.shard)

    @property
    def _counts(self) -> tuple[int, int]:
        samples, held_back = self._samples
        return samples.count, held_back.count

    def _seen(self, group: Mapping[str, LayerInput], turn: _Turn, saved: _Saved, *, is_last: bool) -> dict[str, Seen]:
        """What is seen of a group of inputs, by name."""
        job, (count, rest) = self.job, self._counts
        found, done = saved.load({name: (each.rows.groups, each.rows.k) for name, each in group.items()})
        job.progress.advance(done)
        assert job.data is not None
        every, all_held_back = (data.count for data in job.data.split(job.sampling.held_back))
        before = done
        for values in turn.values(done):
            for name, each in group.items():
                rows = each.rows(values[each.value], every) if each.value in values else None
                if done >= count:
                    found[name].hold(rows, -(-HELD_ROWS // all_held_back))
                elif rows is not None:
                    found[name].gram.update(rows)
            done += 1
            if turn.in_pieces:
                job.progress.advance(1)
            saved.offer(found, done)
        if not is_last and before < count + rest:  # so that what is met in a later group costs nothing of this one
            saved.save(found, count + rest)
        return found


@dataclass(frozen=True)
class _Turn:
    """Inputs that are looked at together.

    Attributes:
        names: of these inputs; where there are none, samples only pass.
        values: gives what there is of them of each sample from this number on.
    """

    names: list[str]
    values: Callable[[int], Iterator[dict[str, NDArray]]]
    in_pieces: bool = False


def nbytes(each: LayerInput) -> int:
    """What looking at an input takes."""
    return 8 * each.rows.groups * each.rows.k**2


class _Saved:
    """A file of progress, replaced as a whole from time to time.

    Args:
        path: None: nothing is ever written.
        index: of the inputs that are looked at together.
    """

    def __init__(self, path: Path | None, index: Index, every: Every) -> None:
        self._path, self._index, self._every = path, index, every
        self._samples, self._since, self._took = 0, time.monotonic(), 0.0

    def load(self, shapes: Mapping[str, tuple[int, int]]) -> tuple[dict[str, Seen], int]:
        """What was seen of these inputs, and how many samples were gone through: nothing where there is no file, or one
        of something else, or a damaged one."""
        nothing = {name: Seen.nothing(*shape) for name, shape in shapes.items()}
        if self._path is None or not self._path.is_file():
            return nothing, 0
        try:
            part = open_part(self._path)
            if part.index != msgspec.structs.replace(self._index, seen=part.index.seen):
                return nothing, 0
            if part.shapes != tuple(shapes.values()) or not part.index.seen:
                return nothing, 0
            return {name: part.seen(number) for number, name in enumerate(shapes)}, part.index.seen
        except BadRecipe:
            return nothing, 0

    def offer(self, found: Mapping[str, Seen], done: int) -> None:
        """To be called after each sample: saves where that is due."""
        self._samples += 1
        waited, every = time.monotonic() - self._since, self._every
        is_due = every.seconds is not None and waited >= max(every.seconds, self._took / SHARE)
        if is_due or (every.samples is not None and self._samples >= every.samples):
            self.save(found, done)

    def save(self, found: Mapping[str, Seen], done: int) -> None:
        """
        Raises:
            BadOutput: it cannot be written.
        """
        if self._path is None:
            return
        start = time.monotonic()
        with staging.as_sentences(self._path):
            faults.point("checkpoint.save")
        with staging.whole(self._path) as staged:
            write_part(staged, msgspec.structs.replace(self._index, seen=done), found.values())
        self._samples, self._since = 0, time.monotonic()
        self._took = self._since - start


def is_progress(path: Path) -> bool:
    """Whether the file at `path` was written here."""
    with contextlib.suppress(BadRecipe):
        return bool(open_part(path).index.seen)
    return False


def remove(partial: Path) -> None:
    """Progress is of no use once what follows from it is on the disk."""
    part = re.compile(re.escape(partial.name) + r"\.\d+of\d+")
    for each in sorted(partial.parent.iterdir()) if partial.parent.is_dir() else ():
        with contextlib.suppress(OSError):
            if part.fullmatch(each.name) and each.is_file() and is_progress(each):
                faults.point("checkpoint.remove")
                each.unlink()


def runner(job: Job, names: Sequence[str]) -> Callable[[Iterable[Feed]], Iterator[dict[str, NDArray]]]:
    """A function that runs the float model on samples and gives these values of each run that were computed."""
    tapped = job.model.clone()
    expose = ExposeValues(names)
    expose(tapped)
    outputs = {name: out for name, out in zip(names, expose.outputs, strict=True) if out is not None}
    session = whole_session(tapped, threads=0)

    def run(data: Iterable[Feed]) -> Iterator[dict[str, NDArray]]:
        with contextlib.closing(prefetch(data)) as samples:
            for sample in samples if outputs else ():
                found = zip(outputs, session.run(sample, list(outputs.values())), strict=True)
                yield {name: np.asarray(x) for name, x in found if x is not None and np.size(x)}
                job.progress.advance(1)

    return run

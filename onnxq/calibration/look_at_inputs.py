"""The model runs on samples, and what each layer gets is summed up: sums of products, and rows of samples held back.

What was seen is left beside the result from time to time, so that a run that was killed goes on from there: a file for
each group of inputs that are looked at together.
"""

from __future__ import annotations

import contextlib
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
from onnxq.calibration.memory import in_groups
from onnxq.calibration.resume import Every
from onnxq.errors import BadRecipe
from onnxq.files import faults, staging
from onnxq.job import Job
from onnxq.model.layer_inputs import LayerInput
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.runtime.session import Feed, Session
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
        job, numbers = self.job, itertools.count()
        groups = in_groups(inputs, lambda name: nbytes(inputs[name]), self.effort.memory)
        paths = resume.parts(self.partial, len(groups))
        for place in filter(None, paths):
            job.guard.writes(place, "--evidence", is_progress)
        job.progress.start("looking at layers", len(groups) * sum(self._counts), "samples")
        for group, path in zip(groups, paths, strict=True):
            saved = _Saved(path, msgspec.structs.replace(self.index, inputs=group), self.effort.every)
            is_last = group is groups[-1]
            for each in self._seen({name: inputs[name] for name in group}, saved, is_last=is_last).values():
                each.add_to(file, next(numbers), is_part=self.index.shard is not None)
        add_index(file, self.index)

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

    def _seen(self, group: Mapping[str, LayerInput], saved: _Saved, *, is_last: bool) -> dict[str, Seen]:
        """What is seen of a group of inputs, by name."""
        job, (samples, held_back), (count, rest) = self.job, self._samples, self._counts
        found, done = saved.load({name: (each.rows.groups, each.rows.k) for name, each in group.items()})
        job.progress.advance(done)
        if done >= count + rest:
            return found
        assert job.data is not None
        every, all_held_back = (data.count for data in job.data.split(job.sampling.held_back))
        run = runner(job, list(dict.fromkeys(each.value for each in group.values())))
        left = itertools.chain(samples.after(done), held_back.after(max(0, done - count)))
        for values in run(left):
            for name, each in group.items():
                rows = each.rows(values[each.value], every) if each.value in values else None
                if done >= count:
                    found[name].hold(rows, -(-HELD_ROWS // all_held_back))
                elif rows is not None:
                    found[name].gram.update(rows)
            done += 1
            saved.offer(found, done)
        if not is_last:  # so that what is met in a later group costs nothing of this one
            saved.save(found, count + rest)
        return found


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
    """Whether the file at `path` was written here, or holds nothing."""
    if not path.stat().st_size:
        return True
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
    session = Session(tapped, threads=0)

    def run(data: Iterable[Feed]) -> Iterator[dict[str, NDArray]]:
        with contextlib.closing(prefetch(data)) as samples:
            for sample in samples if outputs else ():
                found = zip(outputs, session.run(sample, list(outputs.values())), strict=True)
                yield {name: np.asarray(x) for name, x in found if x is not None and np.size(x)}
                job.progress.advance(1)

    return run

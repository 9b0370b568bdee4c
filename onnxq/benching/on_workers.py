"""Models measured by a cluster's workers, one each: what two machines take is not compared.

A time is no content: the same task gives another one tomorrow, so none is kept for a later command. One worker of a
machine measures at a time, as two would slow each other down.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from onnxq import cluster
from onnxq.benching import models
from onnxq.benching.result import BenchReport, How, Median, ModelBench
from onnxq.calibration.shards import require_openable
from onnxq.cluster import Task
from onnxq.files import mirror
from onnxq.job import Environment
from onnxq.model.load import external_tensors, load_model
from onnxq.progress import Progress
from onnxq.runtime.machine import this_machine
from onnxq.runtime.session import Session
from onnxq.samples.same_inputs import require_same_inputs
from onnxq.samples.sampling import Sampling

#: Of a system that runs: the same for all containers on one machine.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Found(msgspec.Struct):
    """What a worker found of one model, and where."""

    report: BenchReport
    place: str
    host: str


def on_workers(word: str, paths: Sequence[Path], sampling: Sampling, how: How, progress: Progress) -> BenchReport:
    """What `bench` finds, each model on a worker of its own.

    Raises:
        OnnxqError: what a worker raised, or why there is none.
    """
    source = None if sampling.source is None else mirror.given(require_openable(sampling.source))
    progress.start("loading")
    loaded = [load_model(path) for path in paths]
    require_same_inputs(paths, loaded)
    files = [*paths, *(Path(tensor.path) for model in loaded for tensor in external_tensors(model))]
    given = [] if source is None or not Path(source).is_file() else [Path(source)]
    with Environment(progress=progress).sharing(word) as engine:
        assert engine is not None
        engine.begin()
        cluster.require_readable(engine, *dict.fromkeys((*files, *given)))
        progress.start("measuring", len(paths), "models")
        tasks = _tasks(paths, replace(sampling, source=source), how)
        found = list(cluster.results(engine, tasks, progress.advance))
    return _joined(paths, found)


def _tasks(paths: Sequence[Path], sampling: Sampling, how: How) -> list[Task]:
    command, places = uuid.uuid4().hex, [mirror.given(path.absolute()) for path in paths]
    made = []
    for number, place in enumerate(places):
        first = None if number == 0 else places[0]
        name = cluster.named(model_bench, [command, number])
        made.append(
            Task(model_bench, (place, first, sampling, how), name, f"'{paths[number]}'", is_kept=False, read=_read)
        )
    return made


def model_bench(model: str, first: str | None, sampling: Sampling, how: How) -> bytes:
    """On a worker: everything about one model.

    Args:
        first: that whose inputs it takes and whose answers are compared with its own; None: it is that one.
    """
    path, _, source = mirror.read_and_written(model, None, sampling.source)
    start = path if first is None else mirror.read_and_written(first, None, None)[0]
    loaded = load_model(path)
    other = loaded if first is None else load_model(start)
    feeds, words = models.feeds_of(other, start, replace(sampling, source=source))
    with _alone_here():
        report = models.measured([path], [loaded], other, (feeds, words), how)
        if first is not None:
            sessions = [Session(each, threads=how.threads[0]) for each in (start, path)]
            models.agree(report, report.models[0], (start, sessions[0]), sessions[1], feeds)
    return msgspec.json.encode(_Found(report, f"{_place()} {this_machine()}", platform.node()))


def _read(result: bytes, who: str) -> _Found:
    """What `model_bench` wrote."""
    try:
        found = msgspec.json.decode(result, type=_Found)
        (model,) = found.report.models
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise cluster.unlike("times of a model", who) from None
    if not 0 < model.ms.low <= model.ms.median <= model.ms.high < math.inf:
        raise cluster.unlike("times of a model", who)
    return found


def _joined(paths: Sequence[Path], found: Sequence[_Found]) -> BenchReport:
    """One report of all."""
    first = found[0]
    is_one = all(each.place == first.place for each in found)
    report = BenchReport([], first.report.inputs, first.report.threads, "several machines", "")
    if is_one:
        report.machine, report.isa = f"{first.host}: {first.report.machine}", first.report.isa
    for path, each in zip(paths, found, strict=True):
        model = each.report.models[0]
        model.model, model.machine = str(path), f"{each.host}: {each.report.machine}"
        report.models.append(model)
        report.notes += [note for note in each.report.notes if note not in report.notes]
        if each is not first and each.place == first.place:
            model.ratio = of_medians(model.ms, first.report.models[0].ms)
        elif each is not first:
            report.notes.append(_apart(model, report.models[0]))
    if any(model.ratio for model in report.models):
        report.notes.append("models were measured one after the other: their ratios are of medians, not of turns")
    return report


def _apart(model: ModelBench, first: ModelBench) -> str:
    return (
        f"'{model.model}' was measured on {model.machine}, and '{first.model}' on {first.machine}: their times are not "
        "compared"
    )


def of_medians(times: Median, to: Median) -> Median:
    """The ratio of two medians, and the widest interval that theirs leave."""
    runs = min(times.runs, to.runs)
    return Median(times.median / to.median, times.low / to.high, times.high / to.low, runs)


def _place() -> str:
    """The same for all workers on one machine."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return f"{platform.node()} {uuid.getnode()}"


@contextlib.contextmanager
def _alone_here() -> Iterator[None]:
    """While no other worker of this user on this machine measures, as far as they see the same temporary folder."""
    try:
        import fcntl

        path = Path(tempfile.gettempdir(), f"onnxq-bench-{os.getuid()}.lock")
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):  # no such locks there, or no such folder
        yield
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)

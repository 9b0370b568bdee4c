"""Models measured in this process: in turns, and each by itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from onnxq.benching.alone import alone
from onnxq.benching.generation import conversation, generation
from onnxq.benching.kernels import kernels_of
from onnxq.benching.result import BenchReport, How, KernelTime, ModelBench
from onnxq.benching.throughput import throughput
from onnxq.benching.turns import in_turns, median_of, ratio_of
from onnxq.errors import BadData, BadModel, amount
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import external_tensors
from onnxq.progress import QUIET, Progress
from onnxq.quality import compare_outputs
from onnxq.runtime.machine import this_machine
from onnxq.runtime.session import Feed, Session
from onnxq.samples.sampling import Sampling

#: As a share of the seconds for which a model is run, those for each batch and number of threads.
SHARE = 0.15
#: Samples on which answers are compared.
SAMPLES = 8


def measured(
    paths: Sequence[Path],
    loaded: Sequence[ir.Model],
    first: ir.Model,
    given: tuple[Sequence[Feed], str],
    how: How,
    progress: Progress = QUIET,
) -> BenchReport:
    """Everything about models, in turns.

    Args:
        loaded: the models at `paths`.
        first: the one by whose inputs they are run token by token.
        given: samples, and what they are, in words.
    """
    feeds, words = given
    sessions = [Session(path, threads=how.threads[0]) for path in paths]
    report = BenchReport.on(this_machine(), words, how.threads[0])
    report.models = _timed(paths, loaded, sessions, feeds[0], how.seconds)
    progress.advance(1)
    for found, session in zip(report.models[1:], sessions[1:], strict=True):
        agree(report, found, (paths[0], sessions[0]), session, feeds)
    for found, path in zip(report.models, paths, strict=True):
        _look_at(found, path, feeds[0], how.threads[0], report.notes)
        progress.advance(1)
    cells, notes = throughput(paths, feeds[0], how.batches, how.threads, SHARE * how.seconds)
    report.notes += notes
    steps, pairs = conversation(first)
    made = generation(sessions, steps, pairs) if pairs else [None] * len(paths)
    for found, row, told in zip(report.models, cells, made, strict=True):
        found.throughput, found.generation = row, told
    progress.advance(1)
    return report


def feeds_of(model: ir.Model, path: Path, sampling: Sampling) -> tuple[list[Feed], str]:
    """Samples of a model's inputs, and what they are, in words.

    Raises:
        BadData: there are none.
    """
    data = sampling.open(model, path)
    if data is not None:
        feeds = list(data.limited(SAMPLES))
        if not feeds:
            raise BadData(f"'{data.source}' holds no samples")
        return feeds, amount(len(feeds), "sample")
    trials = make_up(model, scout(model))
    if not trials.samples:
        raise BadData(f"no inputs could be made up for '{path}': give --data")
    return trials.feeds[:SAMPLES], trials.words


def _timed(
    paths: Sequence[Path], loaded: Sequence[ir.Model], sessions: Sequence[Session], feed: Feed, seconds: float
) -> list[ModelBench]:
    times = in_turns([functools.partial(session.run, feed) for session in sessions], seconds)
    found = []
    for path, model, taken in zip(paths, loaded, times, strict=True):
        files = {path, *(Path(tensor.path) for tensor in external_tensors(model))}
        found.append(ModelBench(str(path), sum(file.stat().st_size for file in files), median_of(taken)))
        if len(found) > 1:
            found[-1].ratio = ratio_of(taken, times[0])
    return found


def agree(
    report: BenchReport, found: ModelBench, first: tuple[Path, Session], session: Session, feeds: Sequence[Feed]
) -> None:
    """Note down how far a model's answers are from those of the first one."""
    path, other = first
    if session.outputs != other.outputs:
        report.notes.append(f"'{found.model}' has other outputs than '{path}': not compared")
        return
    wanted, got = (map(each.run, feeds) for each in (other, session))
    quality = compare_outputs(other.outputs, wanted, got)
    found.sqnr = quality.agreement
    if found.sqnr is None:
        report.notes.append(
            f"'{path}' gives no number, truth value or text that could be compared with '{found.model}'"
        )


def _look_at(found: ModelBench, path: Path, feed: Feed, threads: int, notes: list[str]) -> None:
    """What one model does alone: its kernels, and how it starts."""
    times: dict[str, list[float]] = {}
    for kernel in kernels_of(path, feed, threads):
        times.setdefault(kernel.op, []).append(1e3 * kernel.seconds)
    total = sum(map(sum, times.values())) or 1.0
    rows = [KernelTime(op, len(each), sum(each), sum(each) / total) for op, each in times.items()]
    found.operators = sorted(rows, key=lambda row: -row.ms)
    try:
        start = alone(path, feed, threads)
        found.load_ms, found.first_ms, found.peak_bytes = start.load_ms, start.first_ms, start.peak_bytes
    except BadModel as error:
        notes.append(str(error))

"""`onnxq bench`: several models on the same inputs, the first of which is the measure of the others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from onnxq.benching.alone import alone
from onnxq.benching.generation import conversation, generation
from onnxq.benching.kernels import kernels_of
from onnxq.benching.result import BenchReport, KernelTime, ModelBench
from onnxq.benching.throughput import BATCHES, throughput
from onnxq.benching.turns import in_turns, median_of, ratio_of
from onnxq.boundary import bounded
from onnxq.errors import BadData, BadModel, BadRecipe
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import external_tensors, load_model
from onnxq.progress import QUIET, Progress
from onnxq.quality import compare_outputs
from onnxq.runtime.machine import this_machine
from onnxq.runtime.session import THREADS, Feed, Session
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import inputs_of

#: Seconds for which each model is run; and, as a share of that, with each batch and number of threads.
SECONDS, SHARE = 2.0, 0.15
#: Samples on which answers are compared.
SAMPLES = 8


@bounded
def bench(
    models: Sequence[str | Path],
    sampling: Sampling | None = None,
    *,
    threads: Sequence[int] = (THREADS,),
    batches: Sequence[int] = BATCHES,
    seconds: float = SECONDS,
    progress: Progress = QUIET,
) -> BenchReport:
    """Time `models` on the same inputs, in turns, and compare the answers of all with those of the first.

    Args:
        sampling: samples; without, they are made up.
        threads: of one operator, for throughput all of them, else the first; 0 leaves it to onnxruntime.
        batches: samples in one run, for throughput.
        seconds: for which each model is run.

    Raises:
        OnnxqError: a model or the data cannot be read or run, or the models have other inputs.
    """
    paths = [Path(model) for model in models]
    if not paths or not threads or not batches or seconds <= 0:
        raise BadRecipe("a benchmark takes models, numbers of threads and batches of at least one, and some seconds")
    progress.start("loading", 3 + len(paths))
    loaded = [load_model(path) for path in paths]
    _require_same_inputs(paths, loaded)
    feeds, words = _feeds(loaded[0], paths[0], sampling or Sampling())
    progress.advance(1)
    sessions = [Session(path, threads=threads[0]) for path in paths]
    report = BenchReport.on(this_machine(), words, threads[0])
    report.models = _timed(paths, loaded, sessions, feeds[0], seconds)
    progress.advance(1)
    _compare(report, sessions, feeds)
    for found, path in zip(report.models, paths, strict=True):
        _look_at(found, path, feeds[0], threads[0], report.notes)
        progress.advance(1)
    cells, notes = throughput(paths, feeds[0], batches, threads, SHARE * seconds)
    report.notes += notes
    steps, pairs = conversation(loaded[0])
    made = generation(sessions, steps, pairs) if pairs else [None] * len(paths)
    for found, row, told in zip(report.models, cells, made, strict=True):
        found.throughput, found.generation = row, told
    progress.advance(1)
    return report


def _require_same_inputs(paths: Sequence[Path], loaded: Sequence[ir.Model]) -> None:
    names = [{i.name for i in inputs_of(model)} for model in loaded]
    for path, found in zip(paths, names, strict=True):
        if found != names[0]:
            takes = f"'{paths[0]}' takes {', '.join(sorted(names[0]))}, '{path}' {', '.join(sorted(found))}"
            raise BadModel(f"the models cannot be compared: {takes}")


def _feeds(model: ir.Model, path: Path, sampling: Sampling) -> tuple[list[Feed], str]:
    data = sampling.open(model, path)
    if data is not None:
        feeds = [feed for feed, _ in zip(data, range(SAMPLES), strict=False)]
        if not feeds:
            raise BadData(f"'{data.source}' holds no samples")
        return feeds, f"{len(feeds)} samples"
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


def _compare(report: BenchReport, sessions: Sequence[Session], feeds: Sequence[Feed]) -> None:
    first, wanted = sessions[0], [sessions[0].run(feed) for feed in feeds]
    for found, session in zip(report.models[1:], sessions[1:], strict=True):
        if session.outputs != first.outputs:
            report.notes.append(f"'{found.model}' has other outputs than '{report.models[0].model}': not compared")
            continue
        found.sqnr = compare_outputs(first.outputs, wanted, (session.run(feed) for feed in feeds)).sqnr


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

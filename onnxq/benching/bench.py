"""`onnxq bench`: several models on the same inputs, the first of which is the measure of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.benching.models import feeds_of, measured
from onnxq.benching.on_workers import on_workers
from onnxq.benching.result import BenchReport, How
from onnxq.benching.throughput import BATCHES
from onnxq.boundary import bounded
from onnxq.errors import BadRecipe
from onnxq.model.load import load_model
from onnxq.progress import QUIET, Progress
from onnxq.runtime.session import THREADS
from onnxq.samples.same_inputs import require_same_inputs
from onnxq.samples.sampling import Sampling

#: Seconds for which each model is run.
SECONDS = 2.0


@bounded
def bench(
    models: Sequence[str | Path],
    sampling: Sampling | None = None,
    *,
    threads: Sequence[int] = (THREADS,),
    batches: Sequence[int] = BATCHES,
    seconds: float = SECONDS,
    cluster: str | None = None,
    progress: Progress = QUIET,
) -> BenchReport:
    """Time `models` on the same inputs, in turns, and compare the answers of all with those of the first.

    Args:
        sampling: samples; without, they are made up.
        threads: of one operator, for throughput all of them, else the first; 0 leaves it to onnxruntime.
        batches: samples in one run, for throughput.
        seconds: for which each model is run.
        cluster: whose workers measure a model each, in the words of `cluster.open_engine`; None: this process does, in
            turns.

    Raises:
        OnnxqError: a model or the data cannot be read or run, or the models have other inputs.
    """
    paths = [Path(model) for model in models]
    if not paths or not threads or not batches or not seconds > 0:
        raise BadRecipe("a benchmark takes models, numbers of threads and batches of at least one, and some seconds")
    how = How(tuple(threads), tuple(batches), seconds)
    if cluster is not None:
        return on_workers(cluster, paths, sampling or Sampling(), how, progress)
    progress.start("loading", 3 + len(paths))
    loaded = [load_model(path) for path in paths]
    require_same_inputs(paths, loaded)
    feeds, words = feeds_of(loaded[0], paths[0], sampling or Sampling())
    progress.advance(1)
    return measured(paths, loaded, loaded[0], (feeds, words), how, progress)

"""The accuracy-degradation suite: what each format keeps of synthetic weights, and of a model's own.

Three figures for each format. SQNR and cosine are of the weights. Retention is the share of decisions that stay: of a
synthetic weight [N, K] as a linear classifier of Gaussian inputs, of a model those of its outputs on samples. The float
model's own decisions are the truth, so its score is 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from numpy.typing import NDArray

from onnxq import formats
from onnxq.analysis import granularities
from onnxq.analysis.benchmarks.arrays import table_of
from onnxq.analysis.benchmarks.results import Benchmark, Degradation, Lead, ranked
from onnxq.analysis.layers import Form, forms_for, granularity_of, open_weights
from onnxq.analysis.statistics import ErrorStats, ErrorSums, retention
from onnxq.analysis.synthetic import MAKERS, SUITE
from onnxq.analysis.tensor import quantized, sum_errors, tensor_error
from onnxq.analysis.trial import Trial
from onnxq.boundary import bounded
from onnxq.encoding import memo
from onnxq.errors import BadData, BadModel, amount
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import load_model
from onnxq.model.weights import Role
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.progress import QUIET, Progress
from onnxq.samples.reading import How
from onnxq.samples.source import Data, DataSource, inputs_of, open_data

#: Outputs and inputs of the synthetic layers, and how many Gaussian inputs are classified.
SHAPE, INPUTS = (256, 1024), 2048
#: Samples made up for a model without data.
SYNTHETIC = 4
#: Models larger than this are not run, because their quantized weights would all be in memory: weights only.
MOST_ELEMENTS = 1 << 28
#: How a synthetic weight [N, K] is used.
ROLE = Role(1, channel=0, contraction=1)


@bounded
def run_benchmark(
    model: str | Path | None = None,
    words: Sequence[str] = (),
    wanted: Sequence[str] = (),
    *,
    data: DataSource | None = None,
    preprocessing: How = None,
    limit: int | None = None,
    seed: int | None = None,
    progress: Progress = QUIET,
) -> Benchmark:
    """The whole suite.

    Args:
        preprocessing: how files of samples become inputs.
        model: its own weights are quantized too, all at once, and the model is run with them.
        words, wanted: formats and granularities, as `layers.forms_for` takes them.
        data: samples for the model; without them legal inputs are made up.
        limit: use at most so many samples: the first, or with a `seed` a random choice of them.
        seed: also of the synthetic weights and inputs, whose own is 0.

    Raises:
        OnnxqError: of the model, the data or the words.
    """
    if model is None and data is not None:
        raise BadData("the synthetic weights need no data: give the model that the data are for, or leave out --data")
    forms = forms_for(words, wanted)
    tables = {}
    for name in SUITE:
        progress.start(f"{name} weights", len(forms))
        tables[name] = table_of(MAKERS[name](SHAPE, seed or 0), forms, INPUTS, seed or 0, progress=progress)
    run_on: Sequence[str] = ()
    if model is not None:
        tables[str(model)], *run_on = _model(model, forms, data, preprocessing, limit, seed, progress)
    among = tuple(dict.fromkeys(form.format for form in forms))
    return Benchmark(tables, tuple(leads("nf4", among, seed=seed or 0) if "nf4" in among else ()), *run_on)


def leads(word: str, among: Sequence[str] = (), *, seed: int = 0) -> list[Lead]:
    """How far `word` is ahead on Gaussian weights of other formats of as many bits, at equal granularity.

    Args:
        seed: of the weights.
        among: the others; none means all there are.
    """
    bits, w = formats.get(word).bits, MAKERS["gaussian"](SHAPE, seed)
    found = []
    way = granularities.natural(formats.get(word))
    own = tensor_error(w, word, granularities.parse(way, ROLE))
    for other in among or formats.names():
        if other == word or formats.get(other).bits != bits or granularities.taken(other, way) != way:
            continue
        theirs = tensor_error(w, other, granularities.parse(way, ROLE))
        bits_of_each = (own.bits_per_weight, theirs.bits_per_weight)
        found.append(Lead(word, other, way, own.sqnr - theirs.sqnr, *bits_of_each))
    return found


def _model(
    model: str | Path,
    forms: Sequence[Form],
    data: DataSource | None,
    preprocessing: How,
    limit: int | None,
    seed: int | None,
    progress: Progress,
) -> tuple[tuple[Degradation, ...], str, str]:
    """The model's table, what it was run on, and what a user should know of that."""
    progress.start("loading")
    loaded, weights = open_weights(model)
    trial, inputs = None, "nothing: the model is too large to hold all its weights in memory"
    if sum(weight.elements for weight in weights) <= MOST_ELEMENTS:
        if data is None:
            samples = _made_up(model)
            inputs = f"{samples.source}: no data was given"
        else:
            samples = open_data(data, inputs_of(loaded), preprocessing, model=loaded, path=model).limited(limit, seed)
        trial = Trial(loaded, weights, samples)
        inputs = f"{trial.samples} {inputs}" if data is None else amount(trial.samples, "sample")
    progress.start("the model's weights", len(forms) * len(weights))
    rows = []
    for form in forms:
        sums, changed, problem = ErrorSums(), {}, ""
        for i, weight in enumerate(weights):
            progress.advance(1)
            try:
                sums.merge(sum_errors(weight.tensor, formats.get(form.format), granularity_of(form, weight)))
                if trial is not None:
                    changed[i] = quantized(weight.tensor, formats.get(form.format), granularity_of(form, weight))
            except BadModel as error:
                problem = problem or str(error)
        if problem:
            rows.append(Degradation(form, None, problem=problem))
            continue
        rows.append(_degradation(form, sums.stats(), trial, changed))
    memo.forget()
    return ranked(rows), inputs, "" if trial is None else trial.note


def _degradation(form: Form, stats: ErrorStats, trial: Trial | None, changed: dict[int, NDArray]) -> Degradation:
    if trial is None:
        return Degradation(form, stats)
    quality, share = trial.run_all(changed)
    return Degradation(
        form, stats, None if math.isnan(share) else retention(1.0, share), quality.sqnr if quality.outputs else None
    )


def _made_up(model: str | Path) -> Data:
    """Legal inputs for the model.

    Raises:
        BadModel: none of the inputs tried made it run.
    """
    loaded = load_model(model)
    UniqueNames()(loaded)
    feeds = make_up(loaded, scout(loaded)).feeds[:SYNTHETIC]
    if not feeds:
        raise BadModel(f"'{model}' runs on none of the inputs that were made up for it; give --data")
    return Data("made-up inputs", lambda: (partial(dict, feed) for feed in feeds))

"""`check`: two models compared on samples, whoever made them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from onnxq.boundary import bounded
from onnxq.checking.labeled import LabelMetric
from onnxq.checking.logits import classes_of
from onnxq.checking.models import Check, check_models
from onnxq.checking.spelled import new_types
from onnxq.errors import BadModel, CheckFailed, amount
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import load_model
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.runtime.ort.installed import version
from onnxq.runtime.session import THREADS, Session
from onnxq.samples.reading import How, reading_of
from onnxq.samples.same_inputs import require_same_inputs
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data, DataSource
from onnxq.samples.trials import Trials

#: Samples that two models are compared on, unless told otherwise.
LIMIT = 16


@bounded
def check(  # noqa: PLR0913 - a door for users
    a: str | Path,
    b: str | Path,
    *,
    data: DataSource | None = None,
    preprocessing: How = None,
    tokenizer: str | Path | None = None,
    lengths: Sequence[int] | None = None,
    limit: int | None = LIMIT,
    seed: int | None = None,
    threads: int = THREADS,
    metric: str | None = None,
    labels: str | None = None,
    logits: Sequence[str] = (),
) -> Check:
    """Compare the model at `b` with the float model at `a`, of which it has the inputs and outputs.

    Args:
        data: samples; without, some are made up.
        preprocessing, tokenizer, lengths, limit, seed: how samples are read, as of `quantize`.
        threads: on which they are timed.
        metric: a score of both on these samples: top1, top5, f1, nll, kld or psnr.
        labels: the array beside the inputs that holds the right answers.
        logits: outputs that are scores of classes, where the graph does not say so; `none`: there are none.

    Raises:
        OnnxqError: one of its kinds (`errors.py`).
    """
    sampling = Sampling(data, reading_of(preprocessing, tokenizer, lengths), limit, seed, labels=labels)
    return compare(Path(a), Path(b), sampling, threads=threads, metric=metric, logits=tuple(logits))


def compare(
    a: Path,
    b: Path,
    sampling: Sampling,
    *,
    threads: int = THREADS,
    metric: str | None = None,
    logits: tuple[str, ...] = (),
) -> Check:
    """`check`, of samples as they were asked for."""
    scored = None if metric is None else LabelMetric(metric, sampling, logits=logits, everything=True)
    model = load_model(a)
    require_same_inputs((a, b), (model, load_model(b)))
    classes = classes_of(model, logits)
    in_float = Session(a, threads=threads)
    if (data := sampling.open(model, a)) is not None:
        feeds = list(data)
        trials = Trials.given(feeds, _words(len(feeds), sampling, data), data.note)
    else:
        UniqueNames()(model)
        trials = make_up(model, scout(model))
    try:
        found = check_models(in_float, b, trials, threads=threads, classes=classes)
    except CheckFailed as failed:
        if missing := new_types(b):
            raise BadModel(
                f"'{b}' cannot be compared: onnxruntime {version()} has no kernels for {missing}; 'onnxq dequantize' "
                "makes the same model in floats, which can"
            ) from None
        if isinstance(failed.__cause__, BadModel):  # nobody saved it here
            raise BadModel(f"'{b}' cannot be compared: {failed.__cause__}") from None
        raise
    return found if scored is None else dataclasses.replace(found, score=scored.score(a, b, 1))


def _words(count: int, sampling: Sampling, data: Data) -> str:
    """What so many samples are called; where they may not be all that there are, by which option."""
    found = amount(count, "sample")
    if count != sampling.limit:
        return found
    are_first = sampling.seed is None and not data.note
    return f"{'the first ' if are_first else ''}{found} (--limit)"

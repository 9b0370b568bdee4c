"""A score on labels that lie in the data: `--metric top1 --labels y`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.checking.logits import classes_of
from onnxq.checking.metrics import WORDS, Sums
from onnxq.checking.score import Score
from onnxq.errors import BadData, BadRecipe, CheckFailed
from onnxq.model.load import load_model
from onnxq.quality.decisions import Classes
from onnxq.runtime.session import Feed, Session
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data

#: Held back from calibration where it is scored: a quarter of all samples, which is the most there is.
HELD_BACK = 1 << 40


def require_metric(word: str, labels: str | None, has_data: bool) -> None:
    """
    Raises:
        BadRecipe: there is no such metric, or it lacks something.
    """
    if word not in WORDS:
        raise BadRecipe(f"unknown metric '{word}'; choose one of {', '.join(WORDS)}")
    if not has_data:
        raise BadRecipe(f"--metric {word} is measured on samples: give --data")
    if WORDS[word].wants_labels and labels is None:
        raise BadRecipe(f"--metric {word} compares with labels: say by --labels which array of the data holds them")


class LabelMetric:
    """Scores files by a metric on labelled samples.

    Args:
        word: a metric of `metrics.WORDS`.
        sampling: where samples and labels come from.
        max_drop: by how much the score may get worse; None: by any amount.
        logits: outputs that the user says are scores of classes.
        everything: score on all samples, not only on those that calibration does not see.

    Raises:
        BadRecipe: there is no such metric, or it lacks something.
    """

    def __init__(
        self,
        word: str,
        sampling: Sampling,
        max_drop: float | None = None,
        logits: tuple[str, ...] = (),
        *,
        everything: bool = False,
    ) -> None:
        require_metric(word, sampling.labels, sampling.source is not None)
        if max_drop is not None and not 0 <= max_drop < math.inf:
            raise BadRecipe(f"invalid --max-drop {max_drop:g}; example: 0.005")
        self.word, self.max_drop = word, max_drop
        self._sampling, self._logits, self._everything = sampling, logits, everything
        self._in_float = functools.cache(self._of_float)

    def score(self, in_float: Path, quantized: Path, evaluations: int) -> Score:
        """
        Raises:
            BadData: labels do not fit.
            CheckFailed: the quantized model gives no numbers.
        """
        reference, figure = self._in_float(in_float)
        found = self._measure(in_float, quantized, reference)
        if not math.isfinite(found):
            raise CheckFailed(f"--metric {self.word} of the quantized model is {found:g}: its outputs are no numbers")
        return Score(figure, found, self.max_drop, evaluations, self.word, WORDS[self.word].higher)

    def _of_float(self, path: Path) -> tuple[tuple[NDArray, ...], float]:
        """(the float model's outputs, if it is them that is compared with; its figure)."""
        word = WORDS[self.word]
        reference: tuple[NDArray, ...] = ()
        if not word.wants_labels:
            session, output, *_ = self._opened(path)
            reference = tuple(self._answer(session, feed, output) for feed, _ in self._samples(path))
        found = self._measure(path, path, reference)
        if not math.isfinite(found):
            raise BadData(
                f"--metric {self.word} of the float model is {found:g}: no sample has a label that counts, "
                "and outputs that are numbers"
            )
        return reference, found

    def _measure(self, in_float: Path, path: Path, reference: tuple[NDArray, ...]) -> float:
        session, output, classes, _ = self._opened(in_float)
        if path != in_float:
            session = Session(path, threads=0)
        word, sums = WORDS[self.word], Sums()
        for number, (feed, label) in enumerate(self._samples(in_float)):
            right = label if word.wants_labels else reference[number]
            assert right is not None
            got = self._answer(session, feed, output)
            word.add(sums, got, right, classes, f"--metric {self.word}, sample {number}")
        return word.finish(sums)

    def _answer(self, session: Session, feed: Feed, output: str) -> NDArray:
        found = session.run(feed, [output])[0]
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiubV":
            raise BadData(f"--metric {self.word}: output '{output}' is no tensor of numbers; name another by --logits")
        return found

    @functools.lru_cache(1)  # noqa: B019 - as long as the metric, and no longer
    def _opened(self, path: Path) -> tuple[Session, str, Classes | None, Data]:
        """The float model, the output that is scored, what that holds, and the samples."""
        model = load_model(path)
        classes = classes_of(model, self._logits)
        session = Session(path, threads=0)
        output = next(iter(classes), session.outputs[0])
        data = self._sampling.open_labeled(model, path)
        data = data if self._everything else data.split(self._sampling.held_back)[1]
        return session, output, classes.get(output), data

    def _samples(self, path: Path) -> Iterator[tuple[Feed, NDArray | None]]:
        name = self._sampling.labels
        for sample in self._opened(path)[3]:
            yield {key: x for key, x in sample.items() if key != name}, None if name is None else sample[name]

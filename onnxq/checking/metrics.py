"""What models are scored by where data hold labels: top1, top5, f1, nll, kld, psnr."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.quality import decibel
from onnxq.quality.decisions import Classes

#: From here on the square of a difference of labels may be too large for a float.
MOST_LABEL = 1e150


@dataclass
class Sums:
    """What is added up over samples.

    Attributes:
        total, count: of what is averaged.
        lost: places of those at which the output is no number: whatever is asked of them, it is wrong.
        low, high: of all labels.
        hits, found, wanted: by class, for F1: places of a class that were found, that it was found at, that are of it.
    """

    total: float = 0.0
    count: int = 0
    lost: int = 0
    low: float = math.inf
    high: float = -math.inf
    by_class: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether any place counts at which the output is a number."""
        return self.lost < self.count

    def lose(self, lost: NDArray[np.bool_]) -> None:
        """Count places, and those of them at which the output is no number."""
        self.lost += int(lost.sum())
        self.count += lost.size

    def mean(self) -> float:
        return self.total / self.count if self.is_known else math.nan


#: Adds a sample: the output, the label (of `kld` the float model's output), what the output holds, where it is from.
Add = Callable[[Sums, NDArray, NDArray, "Classes | None", str], None]


@dataclass(frozen=True)
class Word:
    """A metric.

    Attributes:
        wants_labels: without, the float model's outputs are what is right.
        higher: whether more is better.
        finish: the figure, of the sums.
    """

    add: Add
    finish: Callable[[Sums], float] = Sums.mean
    higher: bool = True
    wants_labels: bool = True


def _top(count: int) -> Add:
    def add(sums: Sums, output: NDArray, label: NDArray, classes: Classes | None, where: str) -> None:
        if count == 1 and _says_classes(output, classes):
            said, wanted = _said(output, label, where)
            sums.total += float((said == wanted).sum())
            sums.count += len(wanted)
            return
        scores, right = _places(output, label, classes, where)
        lost = np.asarray(np.isnan(scores).any(axis=1))
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        sums.total += float(((chosen == right[:, None]).any(axis=1) & ~lost).sum())
        sums.lose(lost)

    return add


def _nll(sums: Sums, output: NDArray, label: NDArray, classes: Classes | None, where: str) -> None:
    scores, right = _places(output, label, classes, where)
    sums.total -= float(scores[np.arange(len(right)), right].sum())
    sums.count += len(right)


def _f1(sums: Sums, output: NDArray, label: NDArray, classes: Classes | None, where: str) -> None:
    if _says_classes(output, classes):
        said, known = _said(output, label, where)
        sums.count += len(known)
        _count_each(sums, said, known)
        return
    if classes is not None:
        scores, right = _places(output, label, classes, where)
        lost = np.asarray(np.isnan(scores).any(axis=1))
        sums.lose(lost)
        _count_each(sums, np.where(lost, -1, scores.argmax(axis=1)), right)
        return
    if label.size != output.size:
        raise BadData(
            f"{where}: f1 of an output of shape {list(output.shape)} needs labels of 0 and 1 of that shape, "
            f"not of shape {list(label.shape)}"
        )
    scores, wanted = output.reshape(-1).astype(np.float64), _finite(label, where).reshape(-1) > 0.5
    lost = np.isnan(scores)
    sums.lose(lost)
    chosen = np.where(lost, ~wanted, scores > 0.5)
    _count(sums, 1, np.array([(chosen & wanted).sum(), chosen.sum(), wanted.sum()]))


def _count_each(sums: Sums, chosen: NDArray, right: NDArray) -> None:
    classes, places = np.unique([chosen, right], return_inverse=True)
    said, wanted = places.reshape(2, -1)
    counts = [np.bincount(each, minlength=len(classes)) for each in (said[said == wanted], said, wanted)]
    for word, found in zip(classes.tolist(), np.transpose(counts), strict=True):
        if word >= 0:  # below: no class at all
            _count(sums, word, found)


def _count(sums: Sums, word: int, found: NDArray) -> None:
    """Add hits, places it was found at, and places that are of it."""
    sums.by_class[word] = sums.by_class.get(word, np.zeros(3)) + found


def _mean_f1(sums: Sums) -> float:
    """The mean over classes."""
    each = [2 * hits / max(1.0, found + wanted) for hits, found, wanted in sums.by_class.values()]
    return float(np.mean(each)) if each and sums.is_known else math.nan


def _psnr(sums: Sums, output: NDArray, label: NDArray, classes: Classes | None, where: str) -> None:
    if label.size != output.size:
        raise BadData(
            f"{where}: psnr needs labels of the output's shape {list(output.shape)}, not of {list(label.shape)}"
        )
    x, y = output.astype(np.float64).reshape(-1), _finite(label, where).reshape(-1)
    if np.abs(y).max(initial=0) > MOST_LABEL:
        raise BadData(f"{where}: psnr needs labels within ±{MOST_LABEL:g}, the squares of others are no numbers")
    with np.errstate(over="ignore"):
        sums.total += float(np.square(x - y).sum())
    sums.count += x.size
    sums.low, sums.high = min(sums.low, float(y.min(initial=math.inf))), max(sums.high, float(y.max(initial=-math.inf)))


def _decibel(sums: Sums) -> float:
    """Of the range of all labels over the root of the mean squared error; at most 120 dB."""
    if not sums.count:
        return math.nan
    return decibel((sums.high - sums.low) ** 2, sums.mean())


def _kld(sums: Sums, output: NDArray, label: NDArray, classes: Classes | None, where: str) -> None:
    q, p = (_rows(x, classes, where) for x in (output, label))
    if p.shape != q.shape:
        raise BadData(f"{where}: the outputs have shapes {list(label.shape)} and {list(output.shape)}")
    sums.total += float(np.maximum(0.0, (np.exp(p) * (p - q)).sum(axis=1)).sum())
    sums.count += len(p)


#: By what `--metric` calls them.
WORDS: Mapping[str, Word] = {
    "top1": Word(_top(1)),
    "top5": Word(_top(5)),
    "f1": Word(_f1, _mean_f1),
    "nll": Word(_nll, higher=False),
    "kld": Word(_kld, higher=False, wants_labels=False),
    "psnr": Word(_psnr, _decibel),
}


def _rows(output: NDArray, classes: Classes | None, where: str) -> NDArray[np.float64]:
    """[places, classes] logarithms of probabilities."""
    if classes is None or not classes.are_in(output):
        raise BadData(f"{where}: the output is not known to hold scores of classes; name the one that does by --logits")
    if not output.shape[classes.axis]:
        raise BadData(f"{where}: an output of shape {list(output.shape)} holds scores of no classes")
    scores = classes.logarithms(output.astype(np.float64))
    return scores.reshape(-1, scores.shape[-1])


def _places(
    output: NDArray, label: NDArray, classes: Classes | None, where: str
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """[places, classes] scores and the number of the right class of each place; places with a negative one are left
    out, which is how padding is marked."""
    scores = _rows(output, classes, where)
    numbers = _finite(label, where)
    if numbers.size == scores.size != len(scores):  # one number for each class: the right one has the largest
        numbers = numbers.reshape(scores.shape).argmax(axis=1).astype(np.float64)
    right = numbers.reshape(-1)
    if len(right) != len(scores):
        raise BadData(
            f"{where}: labels of shape {list(label.shape)} do not fit outputs of shape {list(output.shape)}: "
            f"{len(right)} for {len(scores)} places"
        )
    if not (right == np.floor(right)).all() or right.max(initial=0) >= scores.shape[1]:
        raise BadData(f"{where}: labels are numbers of classes, whole ones below {scores.shape[1]}")
    is_known = right >= 0
    return scores[is_known], right[is_known].astype(np.intp)


def _says_classes(output: NDArray, classes: Classes | None) -> bool:
    """Whether an output holds numbers of classes themselves, as behind an ArgMax."""
    return classes is None and output.dtype.kind in "iu"


def _said(output: NDArray, label: NDArray, where: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The class that the output says and the right one, of each place that has one (`_places`)."""
    numbers = _finite(label, where)
    if numbers.size != output.size:
        raise BadData(
            f"{where}: labels of shape {list(label.shape)} do not fit outputs of shape {list(output.shape)}: "
            "each number of a class needs one"
        )
    right = numbers.reshape(-1)
    return output.reshape(-1).astype(np.float64)[right >= 0], right[right >= 0]


def _finite(label: NDArray, where: str) -> NDArray[np.float64]:
    if label.dtype.kind not in "fiub":
        raise BadData(f"{where}: labels of type {label.dtype} are no numbers")
    numbers = np.asarray(label, np.float64)
    if not np.isfinite(numbers).all():
        raise BadData(f"{where}: labels must be finite numbers; leave out samples of which nothing is known")
    return numbers

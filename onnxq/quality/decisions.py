"""What a model decides: the likeliest class, an integer or a text, scores that are held against a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: What a probability of 0 counts as: less than float32 logits tell apart.
LEAST_PROBABILITY = 1e-30
#: Numbers from which on an output may hold scores of many places, and the most of them that are near 1 then.
LEAST_SCORES, RARE = 64, 0.1
#: Share of decisions that may be so near to ties that noise flips them which numbers would hardly show.
NEAR_TIES = 0.05
#: Decisions of one label of which no share is told: one of one would be all.
FEW = 20
#: From here on (half of all flip where nothing is left of the signal) a share of flips counts as this one.
MOST_FLIPS = 0.49
#: Kinds of types whose values are decisions themselves: labels, places, words.
DECIDED = "iubUSO"
MOST_COLUMNS = 1024  # of a place: numbers of its box, scores of its classes
#: How many times the power of scores other numbers have beside which an error of the scores would not be seen.
LOUDER = 10.0


@dataclass(frozen=True)
class Classes:
    """That an output holds a score for each of several classes.

    Attributes:
        axis: along which the classes lie.
        kind: `logits`, `probabilities`, or their `logarithms`.
    """

    axis: int
    kind: str = "logits"

    def are_in(self, x: NDArray) -> bool:
        """Whether `x` has such an axis: the shape of an output may be known only when it is computed."""
        return -x.ndim <= self.axis < x.ndim

    def logarithms(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the probabilities that `x` stands for, the classes along the last axis."""
        x = np.moveaxis(x, self.axis, -1)
        if self.kind == "probabilities":
            return np.log(np.maximum(x, LEAST_PROBABILITY))
        x = x - x.max(axis=-1, keepdims=True)
        return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


#: Of a model that decides nothing.
NO_CLASSES: Mapping[str, Classes] = {}


@dataclass
class Decisions:
    """Sums over all samples and places of an output of classes, or of one that says which it is.

    Attributes:
        kld: Kullback-Leibler divergence of the quantized model's distributions from the float one's, in nats; NaN where
            there are none.
        flips: places where another class is the likeliest, or where it says another one.
        are_truths: whether it says true or false.
    """

    kld: float = 0.0
    flips: float = 0.0
    count: int = 0
    are_truths: bool = False

    def add(self, classes: Classes, wanted: NDArray, got: NDArray) -> None:
        """Places at which the float model gives no numbers are left out; those at which only the other one gives none
        are flipped, and as far away as can be."""
        with np.errstate(invalid="ignore", over="ignore"):
            p, q = (classes.logarithms(x.astype(np.float64)) for x in (wanted, got))
        p, q = p.reshape(-1, p.shape[-1]), q.reshape(-1, q.shape[-1])
        known = np.isfinite(p).all(axis=1)
        p, q = p[known], q[known]
        broken = ~np.isfinite(q).all(axis=1)
        q[broken] = math.log(LEAST_PROBABILITY)
        self.kld += float(np.maximum(0.0, (np.exp(p) * (p - q)).sum(axis=1)).sum())
        self.flips += float(((p.argmax(axis=1) != q.argmax(axis=1)) | broken).sum())
        self.count += len(p)

    def add_said(self, wanted: NDArray, got: NDArray) -> None:
        """Integers, truth values or texts of one shape."""
        self.flips += float(np.count_nonzero(wanted != got))
        self.count += wanted.size
        self.are_truths = wanted.dtype.kind == "b"

    @property
    def is_contrary(self) -> bool:
        """Whether most of many truth values are the other one, which no noise makes of them: it flips half at most."""
        return self.are_truths and self.count >= FEW and 2 * self.flips > self.count

    @property
    def noise(self) -> float:
        """Power of the noise that flips so many decisions between two classes whose difference has a power of 1: of
        numbers that are normally distributed, arctan(√noise) / π. Of more classes less noise flips as many."""
        return math.tan(math.pi * min(self.flips / self.count, MOST_FLIPS)) ** 2 if self.count else 0.0

    @property
    def near_ties(self) -> float:
        """How many may flip that are nearly ties: `NEAR_TIES` of them, and what chance adds to that, three times its
        deviation, and one; but of a few no more than a third."""
        expected = NEAR_TIES * self.count
        return min(expected + 3 * math.sqrt(expected) + 1, self.count / 3)

    def merge(self, other: Decisions) -> None:
        """Take in the sums of other samples."""
        self.kld += other.kld
        self.flips += other.flips
        self.count += other.count
        self.are_truths |= other.are_truths


def is_text(x: NDArray) -> bool:
    return x.dtype.kind in "USO"


def are_alike(x: object, y: object) -> bool:
    """Whether both are arrays of numbers of one shape, of at least one place."""
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)) or x.shape != y.shape:
        return False
    return x.ndim > 0 and x.size > 0 and x.dtype.kind in "fV" and y.dtype.kind in "fV"


def scores_rare_events(x: NDArray) -> bool:
    """Whether an output looks like scores to be compared with a threshold: one of many places, few of them near 1.

    The distribution over the classes of a classifier, which sums to one, is not meant: there only the largest counts.
    """
    if x.dtype.kind != "f" or x.size < LEAST_SCORES or not (np.min(x) >= 0 and np.max(x) <= 1):
        return False
    if any(n > 2 and np.allclose(np.sum(x, axis, dtype=np.float64), 1, atol=1e-2) for axis, n in enumerate(x.shape)):
        return False
    return bool(np.min(np.mean(x.reshape(-1, x.shape[-1]) > 0.5, axis=0)) < RARE)


def scores_beside(x: NDArray) -> tuple[int, NDArray[np.bool_]] | None:
    """Where an output that joins scores of many places with much larger numbers, as boxes in pixels, has the scores.

    Returns the axis of the columns, and which hold scores: adjacent ones, of numbers in 0…1 that are not all 0, few of
    them near 1. None where there are none, nothing but scores, or nothing beside them that is `LOUDER`.
    """
    if x.dtype.kind != "f" or x.ndim < 2 or x.size < LEAST_SCORES:
        return None
    for axis in (axis for axis, n in enumerate(x.shape) if axis and 2 <= n <= MOST_COLUMNS):
        others = tuple(other for other in range(x.ndim) if other != axis)
        low, high = np.min(x, axis=others), np.max(x, axis=others)
        scores = (low >= 0) & (high <= 1) & (high > 0)
        if not scores.any() or scores.all() or np.ptp(np.flatnonzero(scores)) >= scores.sum():
            continue
        with np.errstate(over="ignore"):
            power = np.mean(np.square(x, dtype=np.float64), axis=others)
        is_hidden = power[~scores].mean() >= LOUDER * power[scores].mean()
        if is_hidden and scores_rare_events(np.moveaxis(np.compress(scores, x, axis), axis, -1)):
            return axis, scores
    return None

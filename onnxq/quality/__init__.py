"""How far a model's outputs are from those of the float model."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxq.quality.decisions import DECIDED, FEW, NO_CLASSES, Classes, Decisions, are_alike, is_text
from onnxq.quality.power import Power, add_output

#: What is reported of outputs that are equal, and of no others.
MAX_DB = 120.0
#: The most that is reported of outputs that are not equal, however small the error, or where none can be told.
UNEQUAL_DB = 119.9
#: dB that are told apart where figures are printed.
VISIBLE = 0.05
#: Two runs of one model agree at least so well, whatever the order in which threads add up.
REPEATABLE_DB = 60.0


def decibel(signal: float, noise: float) -> float:
    """10·log10(signal / noise), within ±`MAX_DB`, which is where there is no noise; no more than `UNEQUAL_DB` where
    there is some."""
    if noise == 0:
        return MAX_DB
    if signal == 0 or not math.isfinite(noise):
        return -MAX_DB
    return max(-MAX_DB, min(UNEQUAL_DB, 10 * (math.log10(signal) - math.log10(noise))))


def sqnr(wanted: NDArray, got: NDArray) -> float:
    """The same of two arrays of one size: power of the first over that of the difference."""
    a = wanted.astype(np.float64)
    return decibel(float(np.square(a).sum()), float(np.square(a - got.astype(np.float64)).sum()))


def _signal(power: Power) -> float:
    return power.signal


@dataclass
class Quality:
    """Signal to quantization noise of a model's floating-point outputs, summed over the samples of each label.

    Two figures, in dB, each of the worst output on the worst kind of samples, because averages hide that one is broken:

    * `sqnr`: power of the float output over power of the difference.
    * `contrast`: variance of the float output over power of the difference. What a constant offset adds to the power
      carries no information: logits around 300 may have 35 dB of SQNR and be in the wrong order.

    Scores that lie in one output beside much larger numbers, as YOLO's beside boxes, are an output of their own here.

    Outputs of integers, truth values and texts are decisions. Where a model has no others, the figures are theirs: each
    counts as a number of power 1, with as much noise as flips so many of them: 20 dB where 3 % flip, 40 where 0.3 % do.
    Beside numbers, truth values count so where most of them are the contrary: no noise does that.

    Attributes:
        ignored: outputs that are not looked at.
        labels: what was seen of numbers, by label and output.
        classes: outputs of which decisions are compared too.
        decisions: what was seen of decisions, by label and output.
        numberless: outputs of floating-point numbers none of which was finite in the float model, on some sample.
        appearing: outputs with something else in places where the float model gave no finite number.
    """

    ignored: frozenset[str] = frozenset()
    labels: dict[str, dict[str, Power]] = field(default_factory=dict)
    classes: Mapping[str, Classes] = field(default_factory=dict)
    decisions: dict[str, dict[str, Decisions]] = field(default_factory=dict)
    numberless: set[str] = field(default_factory=set)
    appearing: set[str] = field(default_factory=set)

    def add(self, names: Sequence[str], wanted: Sequence[NDArray], got: Sequence[NDArray], label: str = "") -> None:
        """Take in one sample's outputs."""
        outputs = self.labels.setdefault(label, {})
        for name, x, y in zip(names, wanted, got, strict=True):
            if name not in self.ignored:
                add_output(outputs, name, arrays_of(x), arrays_of(y))
                is_numberless, is_appearing = _without_numbers(arrays_of(x), arrays_of(y))
                self.numberless |= {name} if is_numberless else set()
                self.appearing |= {name} if is_appearing else set()
                if name in self.classes and are_alike(x, y) and self.classes[name].are_in(x):
                    found = self.decisions.setdefault(label, {}).setdefault(name, Decisions())
                    found.add(self.classes[name], x, y)
                for a, b in _decided(x, y):
                    self.decisions.setdefault(label, {}).setdefault(name, Decisions(kld=math.nan)).add_said(a, b)

    def merge(self, other: Quality) -> None:
        """Take in what was seen of the same outputs on other samples."""
        for label, powers in other.labels.items():
            own = self.labels.setdefault(label, {})
            for name, power in powers.items():
                own.setdefault(name, Power()).merge(power)
        for label, decisions in other.decisions.items():
            found = self.decisions.setdefault(label, {})
            for name, each in decisions.items():
                found.setdefault(name, Decisions()).merge(each)
        self.numberless |= other.numberless
        self.appearing |= other.appearing

    @property
    def outputs(self) -> set[str]:
        """Names of the outputs that were compared."""
        return {name for outputs in self._powers_by_label.values() for name in outputs}

    @property
    def _powers_by_label(self) -> Mapping[str, Mapping[str, Power]]:
        """`labels`, and what decisions count as that are outputs themselves: all where there are no numbers."""
        has_numbers = any(self.labels.values())
        counted = [each for each in self._said() if each[2].is_contrary or not has_numbers]
        if not counted:
            return self.labels
        powers = {label: dict(outputs) for label, outputs in self.labels.items()}
        for label, name, each in counted:
            powers.setdefault(label, {})[name] = Power(each.count, 0.0, each.count, each.count * each.noise)
        return powers

    @property
    def blank(self) -> list[str]:
        """Outputs that could not be compared, as the float model never gave a finite number there."""
        return sorted(self.numberless - self.outputs)

    @property
    def partly_blank(self) -> list[str]:
        """Outputs at which the float model gave no finite number on some samples, which were left out there."""
        return sorted(self.numberless & self.outputs)

    @property
    def _most(self) -> float:
        """The most that is reported of all outputs together."""
        return UNEQUAL_DB if self.appearing or any(each.flips for _, _, each in self._said()) else MAX_DB

    @property
    def sqnr(self) -> float:
        return min(self.by_label().values(), default=self._most)

    @property
    def contrast(self) -> float:
        return min(self.contrasts().values(), default=self._most)

    def contrast_for(self, own: str, allowance: float) -> float:
        """`contrast`, in which samples of other labels than `own` may be lower by `allowance` dB, if `own` is there."""
        found = self.contrasts()
        more = allowance if own in found else 0.0
        return min((x if label == own else x + more for label, x in found.items()), default=MAX_DB)

    def short_of(self, sqnr: float, contrast: float, own: str, allowance: float) -> list[tuple[str, str]]:
        """Output and label of what is below these, the worst contrast first; `allowance` as in `contrast_for`."""
        decibels = self._decibels(self._usual_signal())
        contrasts = self._decibels(self._usual_variation(), lambda power: power.variation)
        more = allowance if own in contrasts else 0.0
        found = sorted((x, name, label) for label, row in contrasts.items() for name, x in row.items())
        return [
            (name, label)
            for x, name, label in found
            if not (decibels[label][name] >= sqnr and x >= contrast - (0.0 if label == own else more))
        ]

    def by_output(self) -> dict[str, float]:
        """SQNR of each output in dB, on the samples of the label on which it is worst."""
        table = self._decibels(self._usual_signal())
        return {name: min(row[name] for row in table.values() if name in row) for name in self._names()}

    def by_label(self) -> dict[str, float]:
        """SQNR of the worst output in dB, by label."""
        table = self._decibels(self._usual_signal())
        return {label: min(self._most, *row.values()) for label, row in table.items() if row}

    def faint(self) -> dict[str, tuple[float, float]]:
        """By label of which `by_label` says more, because a weak signal counts as a share of the usual one: its SQNR in
        dB as it is, and by how many dB the signal of that output is weaker than usual."""
        usual, found = self._usual_signal(), dict[str, tuple[float, float]]()
        counted = self.by_label()
        for label, outputs in self._powers_by_label.items():
            name, own = min(self._as_it_is(outputs).items(), key=lambda each: each[1], default=("", math.inf))
            if own < counted.get(label, -math.inf) - VISIBLE:
                power = outputs[name]
                found[label] = (own, decibel(usual[name], power.signal / max(1, power.count)))
        return found

    @property
    def is_of_faint(self) -> bool:
        """Whether what it is judged by is more than the SQNR, as it is of faint outputs."""
        kinds = self.by_label()
        return bool(kinds) and min(kinds, key=kinds.__getitem__) in self.faint()

    def below(self, least: float) -> int:
        """How many labels have an SQNR as it is that is less."""
        rows = (self._as_it_is(outputs) for outputs in self._powers_by_label.values())
        return sum(min(row.values(), default=math.inf) < least - VISIBLE for row in rows)

    def _as_it_is(self, outputs: Mapping[str, Power]) -> dict[str, float]:
        """SQNR in dB by output, of a signal that counts as no more than it is."""
        return {name: self._decibel(name, power, 0.0, _signal) for name, power in outputs.items()}

    def contrasts(self) -> dict[str, float]:
        """Contrast of the worst output in dB, by label."""
        table = self._decibels(self._usual_variation(), lambda power: power.variation)
        return {label: min(self._most, *row.values()) for label, row in table.items() if row}

    @property
    def kld(self) -> float:
        """Mean KL divergence in nats of the worst output of classes, on its worst label, those of few decisions taken
        together; NaN where there is none."""
        return self._worst(lambda each: each.kld)

    @property
    def flips(self) -> float:
        """Share of flipped decisions, in the same way."""
        return self._worst(lambda each: each.flips)

    def _worst(self, figure: Callable[[Decisions], float]) -> float:
        told, few = list[Decisions](), dict[str, Decisions]()
        for outputs in self.decisions.values():
            for name, each in outputs.items():
                if each.count < FEW:
                    few.setdefault(name, Decisions()).merge(each)
                else:
                    told.append(each)
        found = [figure(each) / each.count for each in (*told, *few.values()) if each.count]
        return max((x for x in found if not math.isnan(x)), default=math.nan)

    @property
    def only_decides(self) -> bool:
        """Whether no output holds floating-point numbers: figures in dB are those of decisions."""
        return not any(self.labels.values()) and any(self.decisions.values())

    @property
    def agreement(self) -> float | None:
        """SQNR in dB of two files that are to be the same, outputs of decisions counted beside numbers too; None where
        nothing was compared."""
        said = [decibel(1.0, each.noise) for _, _, each in self._said()]
        return min(self.sqnr, *said, MAX_DB) if self.outputs else None

    @property
    def decides_alike(self) -> bool:
        """Whether no more decisions flip than near ties explain, of outputs that say them."""
        return all(each.flips <= each.near_ties for _, _, each in self._said())

    def is_another(self, least: float) -> bool:
        """Whether two files that are to be the same are not: numbers agree by less than `least` dB, or more decisions
        flip than near ties explain."""
        return not self.decides_alike or (not self.only_decides and self.sqnr < least)

    def flips_beyond(self, other: Quality) -> tuple[str, str]:
        """How many decisions flip at an output at which more do than in `other`, of the same outputs and samples, and
        than near ties explain; and how many there. Empty where there is no such output."""
        before = {(label, name): each.flips for label, name, each in other._said()}
        for label, name, each in self._said():
            there = before.get((label, name), 0.0)
            if each.flips > there + each.near_ties:
                return f"{each.flips:.0f} of {each.count} decisions of '{name}' flip", f"{there:.0f} flip"
        return "", ""

    def _said(self) -> Iterator[tuple[str, str, Decisions]]:
        """Labels, outputs that say decisions themselves, and what was seen of these."""
        for label, found in self.decisions.items():
            yield from ((label, name, each) for name, each in found.items() if math.isnan(each.kld) and each.count)

    def worst_alike(self) -> float:
        """`sqnr` where labels are samples of one kind: a signal counts as at least a share of the mean one."""
        powers = [(name, power) for outputs in self._powers_by_label.values() for name, power in outputs.items()]
        usual = {
            name: sum(p.signal for n, p in powers if n == name) / max(1, sum(p.count for n, p in powers if n == name))
            for name in self._names()
        }
        found = (self._decibel(name, p, usual[name], _signal) for name, p in powers)
        return min([self._most, *found])

    def noise_ratio(self) -> float:
        """Noise over variation, summed over outputs and labels; huge for an output that is broken."""
        usual, total = self._usual_variation(), 0.0
        for outputs in self._powers_by_label.values():
            for name, power in outputs.items():
                for part, least in power.parts(usual[name]):
                    variation = max(part.variation, least)
                    if part.mismatch or not math.isfinite(part.noise):
                        total += 1e6
                    elif part.noise:
                        total += min(1e6, part.noise / variation) if variation else 1.0
        return total

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for outputs in self._powers_by_label.values() for name in outputs))

    def _decibels(
        self, usual: Mapping[str, float], signal_of: Callable[[Power], float] = _signal
    ) -> dict[str, dict[str, float]]:
        """dB by label and output. A signal counts as at least a share of the usual one."""
        return {
            label: {name: self._decibel(name, power, usual[name], signal_of) for name, power in outputs.items()}
            for label, outputs in self._powers_by_label.items()
        }

    def _decibel(self, name: str, power: Power, usual: float, signal_of: Callable[[Power], float]) -> float:
        """Of the worst range, where the signal counts as at least a share of the usual one."""
        most = UNEQUAL_DB if name in self.appearing else MAX_DB
        found = (decibel(max(signal_of(part), least), part.noise) for part, least in power.parts(usual))
        return -MAX_DB if power.mismatch else min(most, *found)

    def _usual_signal(self) -> dict[str, float]:
        """Mean square of a number of each output: the median of the labels."""
        return {name: _median([p.signal / p.count for p in self._powers(name)]) for name in self._names()}

    def _usual_variation(self) -> dict[str, float]:
        """Variance of each output: the median within the labels, and that of what sets them apart."""
        found = {}
        for name in self._names():
            powers = self._powers(name)
            means = [p.total / p.count for p in powers]
            middle = _median(means)
            within = _median([p.variation / p.count for p in powers if p.count > 1])
            found[name] = within + _median([(mean - middle) * (mean - middle) for mean in means])
        return found

    def _powers(self, name: str) -> list[Power]:
        """Of one output by label; none where there is but one label, which has only itself to be compared with."""
        if len(self._powers_by_label) < 2:
            return []
        return [outputs[name] for outputs in self._powers_by_label.values() if name in outputs and outputs[name].count]


def _without_numbers(wanted: Sequence[NDArray], got: Sequence[NDArray]) -> tuple[bool, bool]:
    """Whether there are floating-point numbers in the first ones, and none that is finite; and whether, in places where
    there are no finite ones, there is something else in the others."""
    finite = [np.isfinite(x.astype(np.float64, copy=False)) if x.dtype.kind in "fV" else None for x in wanted]
    floats = [known for known in finite if known is not None and known.size]
    is_appearing = False
    for x, y, known in zip(wanted, got, finite, strict=False):
        if known is not None and not known.all() and x.shape == y.shape and not is_text(y):
            a, b = (each[~known].astype(np.float64) for each in (x, y))
            is_appearing |= not np.array_equal(a, b, equal_nan=True)
    return bool(floats) and not any(known.any() for known in floats), is_appearing


def _decided(x: object, y: object) -> Iterator[tuple[NDArray, NDArray]]:
    """Arrays of decisions of one shape in both."""
    for a, b in zip(arrays_of(x), arrays_of(y), strict=False):
        if a.dtype.kind in DECIDED and a.size and a.shape == b.shape and is_text(a) == is_text(b):
            yield a, b


def arrays_of(output: object) -> list[NDArray]:
    """The arrays in an output: one, or those of a sequence or map, or none of an empty optional."""
    if isinstance(output, Mapping):
        return [x for key in sorted(output) for x in arrays_of(output[key])]
    if isinstance(output, list):
        return [x for each in output for x in arrays_of(each)]
    return [] if output is None else [np.asarray(output)]


def unrepeatable(names: Sequence[str], once: Sequence[NDArray], again: Sequence[NDArray]) -> frozenset[str]:
    """Outputs on which two runs of one model on the same inputs disagree: they are random, and prove nothing."""
    quality = compare_outputs(names, [once], [again])
    flipped = {name for found in quality.decisions.values() for name, each in found.items() if each.flips}
    apart = {name for name, decibel in quality.by_output().items() if decibel < REPEATABLE_DB}
    return frozenset(flipped | quality.appearing | apart)


def _median(numbers: Sequence[float]) -> float:
    return statistics.median(numbers) if numbers else 0.0


def compare_outputs(
    names: Sequence[str],
    wanted: Iterable[Sequence[NDArray]],
    got: Iterable[Sequence[NDArray]],
    ignored: frozenset[str] = frozenset(),
    labels: Iterable[str] | None = None,
    classes: Mapping[str, Classes] = NO_CLASSES,
) -> Quality:
    """The quality of outputs `got` against `wanted`, sample by sample, but for those in `ignored`.

    Args:
        labels: of each sample; by default all are alike.
        classes: outputs of which decisions are compared too.
    """
    quality = Quality(ignored, classes=classes)
    names_of = itertools.repeat("") if labels is None else iter(labels)
    for x, y in zip(wanted, got, strict=True):
        quality.add(names, x, y, next(names_of))
    return quality

"""How far a model's outputs are from those of the float model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

#: What is reported for outputs that are equal, and the most that is reported at all.
MAX_DB = 120.0
#: Two runs of one model agree at least so well, whatever the order in which threads add up.
REPEATABLE_DB = 60.0


@dataclass
class Power:
    """Sums over all samples of one output: squares and plain sum of the float numbers, squares of the differences."""

    signal: float = 0.0
    total: float = 0.0
    count: int = 0
    noise: float = 0.0
    mismatch: bool = False

    @property
    def variation(self) -> float:
        """Sum of squared deviations from the mean; of one single number, its square."""
        if self.count < 2:
            return self.signal
        return max(0.0, self.signal - self.total**2 / self.count)


@dataclass
class Quality:
    """Signal to quantization noise of a model's floating-point outputs, summed over samples.

    Two figures, in dB, each of the worst output, because averages over outputs hide that one is broken:

    * `sqnr`: power of the float output over power of the difference.
    * `contrast`: variance of the float output over power of the difference. What a constant offset adds to the power
      carries no information: logits around 300 may have 35 dB of SQNR and be in the wrong order.

    Outputs in `ignored` are not looked at.
    """

    outputs: dict[str, Power] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def add(self, names: Sequence[str], wanted: Sequence[NDArray], got: Sequence[NDArray]) -> None:
        """Take in one sample's outputs; those that are not floating-point numbers count only if their shapes differ."""
        for name, wished, found in zip(names, wanted, got, strict=True):
            if name not in self.ignored:
                self._add(name, arrays_of(wished), arrays_of(found))

    def _add(self, name: str, wanted: Sequence[NDArray], got: Sequence[NDArray]) -> None:
        if [x.shape for x in wanted] != [y.shape for y in got]:
            self.outputs.setdefault(name, Power()).mismatch = True
            return
        for x, y in zip(wanted, got, strict=True):
            if x.dtype.kind not in "fV" or not x.size:
                continue
            a, b = x.astype(np.float64), y.astype(np.float64)
            known = np.isfinite(a)
            a, b = a[known], b[known]
            if not a.size:
                continue
            power = self.outputs.setdefault(name, Power())
            power.signal += float(np.sum(a * a))
            power.total += float(np.sum(a))
            power.count += a.size
            power.noise += float(np.sum((a - b) ** 2)) if np.isfinite(b).all() else math.inf

    @property
    def sqnr(self) -> float:
        return self._worst(lambda power: power.signal)

    @property
    def contrast(self) -> float:
        return self._worst(lambda power: power.variation)

    def by_output(self) -> dict[str, float]:
        """SQNR of each output in dB."""
        return {name: _decibel(power, power.signal) for name, power in self.outputs.items()}

    def _worst(self, numerator: object) -> float:
        assert callable(numerator)
        return min((_decibel(power, numerator(power)) for power in self.outputs.values()), default=MAX_DB)


def arrays_of(output: object) -> list[NDArray]:
    """The arrays in an output: one, or those of a sequence or map, or none of an empty optional."""
    if isinstance(output, Mapping):
        return [x for key in sorted(output) for x in arrays_of(output[key])]
    if isinstance(output, list):
        return [x for each in output for x in arrays_of(each)]
    return [] if output is None else [np.asarray(output)]


def unrepeatable(names: Sequence[str], once: Sequence[NDArray], again: Sequence[NDArray]) -> frozenset[str]:
    """Outputs on which two runs of one model on the same inputs disagree: they are random, and prove nothing."""
    quality = measure(names, [once], [again])
    return frozenset(name for name, decibel in quality.by_output().items() if decibel < REPEATABLE_DB)


def _decibel(power: Power, signal: float) -> float:
    if power.mismatch or not math.isfinite(power.noise):
        return -MAX_DB
    if power.noise == 0:
        return MAX_DB
    if signal == 0:
        return -MAX_DB
    return max(-MAX_DB, min(MAX_DB, 10 * math.log10(signal / power.noise)))


def measure(
    names: Sequence[str],
    wanted: Iterable[Sequence[NDArray]],
    got: Iterable[Sequence[NDArray]],
    ignored: frozenset[str] = frozenset(),
) -> Quality:
    """The quality of outputs `got` against `wanted`, sample by sample, but for those in `ignored`."""
    quality = Quality(ignored=ignored)
    for x, y in zip(wanted, got, strict=True):
        quality.add(names, x, y)
    return quality


def noise_ratio(quality: Quality) -> float:
    """Noise over variation, summed over the outputs; huge for an output that is broken."""
    total = 0.0
    for power in quality.outputs.values():
        if power.mismatch or not math.isfinite(power.noise):
            total += 1e6
        elif power.noise:
            total += power.noise / power.variation if power.variation else 1.0
    return total

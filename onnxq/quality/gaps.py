"""Samples that hold NaN or infinity: what calibration leaves out of them nobody sees in its ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

KINDS = {"NaN": np.isnan, "infinity": np.isinf}


def gaps_of(sample: Mapping[str, NDArray]) -> dict[str, list[str]]:
    """By input, which of NaN and infinity it holds; inputs of finite numbers, or of no floats, are not among them."""
    numbers = {name: _known(x) for name, x in sample.items() if x.dtype.kind in "fV"}
    found = {name: [what for what, holds in KINDS.items() if holds(x).any()] for name, x in numbers.items()}
    return {name: kinds for name, kinds in found.items() if kinds}


@dataclass
class Gaps:
    """What was met so far of samples, by their numbers.

    Attributes:
        looked_at: whether the sample says anything: it holds a finite number, or something else than floats.
        found: `gaps_of` samples that hold any, but for masks.
    """

    looked_at: dict[int, bool] = field(default_factory=dict)
    found: dict[int, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    def look(self, number: int, sample: Mapping[str, NDArray]) -> None:
        """Take in a sample; one that is read again is looked at no more."""
        if number in self.looked_at:
            return
        given = [x for x in sample.values() if x.size]
        finite = [np.isfinite(_known(x)) for x in given if x.dtype.kind in "fV"]
        self.looked_at[number] = len(finite) < len(given) or not given or any(each.any() for each in finite)
        if not all(each.all() for each in finite):
            found = {name: kinds for name, kinds in gaps_of(sample).items() if not _is_mask(sample[name])}
            self.found |= {number: found} if found else {}

    def take_in(self, other: Gaps) -> None:
        """What was met of the same samples elsewhere."""
        self.looked_at |= other.looked_at
        self.found |= other.found

    @property
    def is_all(self) -> bool:
        """Whether no sample that was met says anything."""
        return bool(self.looked_at) and not any(self.looked_at.values())


def _known(x: NDArray) -> NDArray:
    """As numbers of a type that numpy itself has."""
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _is_mask(x: NDArray) -> bool:
    """Whether it is -inf in some places alone, as what is added to scores of attention, with or without biases."""
    known = _known(x)
    return bool(np.isfinite(known).any() and not (np.isnan(known) | (known == np.inf)).any())

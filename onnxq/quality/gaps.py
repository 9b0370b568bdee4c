"""Samples that hold NaN or infinity: what calibration leaves out of them nobody sees in its ranges."""

from __future__ import annotations

from collections.abc import Mapping
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
        looked_at: how many of the sample's numbers are finite; None where it has no floats.
        found: `gaps_of` samples that hold any, but for masks.
    """

    looked_at: dict[int, int | None] = field(default_factory=dict)
    found: dict[int, dict[str, list[str]]] = field(default_factory=dict)

    def look(self, number: int, sample: Mapping[str, NDArray]) -> None:
        """Take in a sample; one that is read again is looked at no more."""
        if number in self.looked_at:
            return
        floats = [x for x in sample.values() if x.dtype.kind in "fV" and x.size]
        self.looked_at[number] = sum(int(np.isfinite(_known(x)).sum()) for x in floats) if floats else None
        if self.looked_at[number] != sum(x.size for x in floats):
            found = {name: kinds for name, kinds in gaps_of(sample).items() if not _is_mask(sample[name])}
            self.found |= {number: found} if found else {}

    @property
    def is_all(self) -> bool:
        """Whether no sample that was met holds a finite number."""
        return bool(self.looked_at) and not any(count is None or count for count in self.looked_at.values())


def _known(x: NDArray) -> NDArray:
    """As numbers of a type that numpy itself has."""
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _is_mask(x: NDArray) -> bool:
    """Whether it is zero where something is seen, and -inf elsewhere, as what is added to scores of attention."""
    return bool(((x == 0) | (x == -np.inf)).all())

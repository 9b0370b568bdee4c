"""What calibration found: the range of each observed activation, bound to the model, data and method it is true for."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadRecipe
from onnxq.files import limits, schemas


@dataclass(frozen=True)
class Range:
    """Lowest and highest value to represent; `low <= high`."""

    low: float
    high: float

    def union(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class Grid:
    """The codes that a range is spread over; one of them is zero.

    Attributes:
        steps: between the lowest and the highest code.
        symmetric: the range is the same on both sides of zero.
    """

    steps: int = 255
    symmetric: bool = False

    def step(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
        """The distance of neighbouring codes of ranges with these ends, `low <= 0 <= high`."""
        return (2 * np.maximum(-low, high) if self.symmetric else high - low) / self.steps

    def magnitudes(self, *, one_sided: bool) -> int:
        """Codes on one side of zero, for numbers of both signs or of one."""
        return self.steps if one_sided and not self.symmetric else (self.steps + 1) // 2


UINT8 = Grid()


@dataclass(frozen=True)
class Ranges:
    """`Range` by value name of the prepared model.

    Attributes:
        ranks: number of dimensions of the observed values, where it was always the same. Not of those in subgraphs.
        problems: why a value has no range (never computed, NaN only …), by name.
        notes: what is odd about a value that has one (some NaN, always the same number), by name.
        samples: how many they were found on; 0 of those that a file without observations tells.
    """

    model: str
    data: str
    method: str
    values: dict[str, Range] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    samples: int = field(default=0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "data": self.data,
            "method": self.method,
            "values": {name: [r.low, r.high] for name, r in self.values.items()},
            "ranks": self.ranks,
            "problems": self.problems,
            "notes": self.notes,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def load_ranges(path: str | Path, *, model: str, data: str, method: str) -> Ranges:
    """Ranges saved earlier, if they belong to this model, this data and this method.

    Raises:
        BadRecipe: not a ranges file, or one for another model, other data or another method.
    """
    text = limits.read_text(path, "the ranges ", limits.RANGES_BYTES)
    try:
        table = schemas.checked(limits.parse_json(text, strict=True), schemas.RangesFile)
        values = {name: Range(low, high) for name, (low, high) in table.values.items()}
        if not all(-math.inf < r.low <= r.high < math.inf for r in values.values()):
            raise ValueError
    except ValueError:
        raise BadRecipe(f"'{path}' is not a file of ranges written by 'onnxq calibrate'") from None
    found = Ranges(table.model, table.data, table.method, values, table.ranks, table.problems, table.notes)
    require_same(path, found, model=model, data=data, method=method)
    return found


def require_same(path: str | Path, found: object, **wanted: str) -> None:
    """Refuse the file at `path` if what it holds is of another model, other data …

    Raises:
        BadRecipe: an attribute of `found` is not what is wanted.
    """
    for what, value in wanted.items():
        if getattr(found, what) != value:
            which = "other data" if what == "data" else f"another {what}"
            raise BadRecipe(f"the ranges '{path}' are of {which}; delete the file or give another --ranges")


NO_RANGES = Ranges("", "", "")

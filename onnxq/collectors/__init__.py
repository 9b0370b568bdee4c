"""Summaries of one activation over all samples, of constant size.

One file each; the file name is the word on the command line (`_` for `-`) and, in camel case, the class inside.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Protocol, Self

from numpy.typing import NDArray

from onnxq.errors import BadRecipe
from onnxq.ranges import Range


class Collector(Protocol):
    """What every file of this folder defines."""

    def update(self, x: NDArray) -> None:
        """Take in one batch of the activation: any shape, NaN and infinities ignored, empty allowed."""

    def merge(self, other: Self) -> None:
        """Take in what `other` has seen, as if it had been seen here after all the rest."""

    def range(self) -> Range | None:
        """The range to represent; None if no finite number was seen."""


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all collectors, from the folder's file names."""
    return tuple(sorted(p.stem.replace("_", "-") for p in Path(__file__).parent.glob("[!_]*.py")))


@functools.cache
def get(name: str) -> type[Collector]:
    """The collector class called `name`.

    Raises:
        BadRecipe: no file of that name; the message lists those there are.
    """
    if name not in names():
        raise BadRecipe(f"there is no calibration method '{name}'; choose one of {', '.join(names())}")
    stem = name.replace("-", "_")
    module = importlib.import_module(f"onnxq.collectors.{stem}")
    found: type[Collector] = getattr(module, "".join(part.capitalize() for part in stem.split("_")))
    return found


def finite(x: NDArray) -> NDArray:
    """The finite numbers of `x`, flat; `x` itself when all of it is finite."""
    import numpy as np

    flat = x.reshape(-1)
    mask = np.isfinite(flat)
    return flat if mask.all() else flat[mask]

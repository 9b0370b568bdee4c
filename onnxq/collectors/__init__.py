"""How a range is chosen from what was seen of an activation: a summary of constant size over all samples.

One file each; the file name is the word on the command line (`_` for `-`) and, in camel case, the class inside. All
read the same summary (`summaries/summary.py`), so that one run of the model serves every method.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Protocol, Self

from numpy.typing import NDArray

from onnxq.boundary import typed
from onnxq.errors import BadRecipe
from onnxq.summaries.histogram import BINS, Histogram
from onnxq.summaries.ranges import UINT8, Grid, Range
from onnxq.summaries.summary import MOMENTUM, Summary

#: Fewer bins do not tell ranges apart.
LEAST_BINS = 16


class Collector(Protocol):
    """What every file of this folder defines, on top of `SummaryCollector`."""

    #: Whether the range is read off the histogram, which takes longer to fill than the extremes.
    needs_histogram: bool
    #: Weight of a new batch, where it makes a difference.
    momentum: float | None
    #: What was seen.
    summary: Summary

    def __init__(self, summary: Summary | None = None) -> None: ...

    def update(self, x: NDArray) -> None:
        """Take in one batch of the activation: any shape, NaN and infinities ignored, empty allowed.

        Args:
            x: of any floating-point type.
        """

    def merge(self, other: Self) -> None:
        """Take in what `other` has seen, as if it had been seen here after all the rest."""

    def range(self, grid: Grid = UINT8) -> Range | None:
        """The range to represent on `grid`; None if no finite number was seen."""


class SummaryCollector:
    """A collector's summary; its own, or one that was filled elsewhere and serves several collectors."""

    needs_histogram = True
    momentum: float | None = None
    #: Of the histogram that the range is read off, at most.
    bins = BINS

    def __init__(self, summary: Summary | None = None) -> None:
        if summary is None:
            histogram = Histogram() if self.needs_histogram else None
            summary = Summary(momentum=self.momentum or MOMENTUM, histogram=histogram)
        self.summary = summary

    @property
    def histogram(self) -> Histogram | None:
        """In at most `bins` bins; None if none was kept."""
        kept = self.summary.histogram
        return kept if kept is None or self.bins == BINS else kept.coarsened(self.bins)

    def update(self, x: NDArray) -> None:
        """Take in one batch `x`, as `Collector.update`."""
        self.summary.update(x)

    def merge(self, other: Self) -> None:
        """Take in what `other` has seen, as `Collector.merge`."""
        self.summary.merge(other.summary)


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all collectors, from the folder's file names."""
    return tuple(sorted(p.stem.replace("_", "-") for p in Path(__file__).parent.glob("[!_]*.py")))


@typed
@functools.cache
def get(name: str) -> type[Collector]:
    """The collector class called `name`, which may have parameters behind a colon (`percentile:99.99`) and say behind
    an @ how many bins its histogram has at most (`entropy@2048`).

    Raises:
        BadRecipe: no file of that name; the message lists those there are. Or parameters that it does not take.
    """
    name, at, bins = name.partition("@")
    found = _with_parameters(name)
    return _with_bins(found, name, bins) if at else found


def _with_parameters(name: str) -> type[Collector]:
    word, colon, parameters = name.partition(":")
    if word not in names():
        raise BadRecipe(f"unknown calibration method '{word}'; choose one of {', '.join(names())}")
    stem = word.replace("-", "_")
    module = importlib.import_module(f"onnxq.collectors.{stem}")
    found: type[Collector] = getattr(module, "".join(part.capitalize() for part in stem.split("_")))
    if not colon:
        return found
    if not hasattr(found, "with_parameters"):
        raise BadRecipe(f"the calibration method {word} has no parameters, so '{name}' is none")
    made: type[Collector] = found.with_parameters(parameters)
    return made


def _with_bins(found: type[Collector], name: str, bins: str) -> type[Collector]:
    if not found.needs_histogram:
        raise BadRecipe(f"the calibration method {name} reads no histogram, so '{bins}' bins are none of its own")
    if not (bins.isascii() and bins.isdecimal() and len(bins) < 9 and LEAST_BINS <= int(bins) <= BINS):
        raise BadRecipe(f"'{bins}' bins: a histogram has {LEAST_BINS} to {BINS}, as in {name}@2048")
    return type(found.__name__, (found,), {"bins": int(bins)})

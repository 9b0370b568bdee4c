"""Watching activations while the float model runs: inside the graph where the compiled library is there, else in numpy.

Both fill the same summaries with the same numbers. Inside the graph nothing is copied and nothing is kept, a value is
seen wherever it is computed, and onnxruntime optimizes all the rest as usual. In numpy every value becomes an output;
of those in subgraphs of Loop and Scan only each turn's extremes do (`passes/observe/expose_values.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from onnxq.calibration.memory import whole_session
from onnxq.files import staging
from onnxq.model import graph
from onnxq.model.load import load_written
from onnxq.output import write
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.passes.observe.observe_values import ObserveBeforeReorder, ObserveValues
from onnxq.runtime.session import Feed, Session, data_folder
from onnxq.summaries import native
from onnxq.summaries.native import NativeSummary
from onnxq.summaries.summary import Summary

#: Models with more bytes of constants are not written and read once more for the sake of their convolutions.
BLOCKED_BYTES = 1 << 29
#: What happened to a value that neither can see.
HIDDEN = "inside a subgraph that cannot be observed"


class Observer(Protocol):
    """Runs a model and sums up its activations.

    Attributes:
        hidden: names that it cannot see.
    """

    hidden: list[str]

    def run(self, sample: Feed) -> None:
        """Run the model once; everything seen is one batch.

        Raises:
            BadModel: the run fails.
        """

    def read(self) -> dict[str, Summary]:
        """What has been seen so far, by name, with what was there at the start."""


def open_observer(model: ir.Model, start: Mapping[str, Summary], threads: int, others: Sequence[str] = ()) -> Observer:
    """The faster observer that can be had.

    Args:
        model: in float; not changed.
        start: by value name, the summaries to go on from.
        threads: of one operator; 0 leaves it to onnxruntime.
        others: names that are observed in other passes. Inside the graph they get a node as well, so that every pass
            runs the same graph, to the last bit.
    """
    return (NativeObserver if native.available() else NumpyObserver)(model, start, threads, others)


class NumpyObserver:
    """Makes every value an output: the reference, and the way without a compiled library."""

    def __init__(self, model: ir.Model, start: Mapping[str, Summary], threads: int, others: Sequence[str] = ()) -> None:
        self._summaries = dict(start)
        tapped = model.clone()
        expose = ExposeValues(list(start))
        expose(tapped)
        self._taps = {name: out for name, out in zip(start, expose.outputs, strict=True) if out is not None}
        self.hidden = [name for name in start if name not in self._taps]
        self._session = whole_session(tapped, threads)

    def run(self, sample: Feed) -> None:
        for name, x in zip(self._taps, self._session.run(sample, list(self._taps.values())), strict=True):
            summary = self._summaries[name]
            before = len(summary.trail or ())
            if x is not None:
                summary.update(x)
            if summary.trail is not None and len(summary.trail) == before:
                summary.trail.append(None)

    def read(self) -> dict[str, Summary]:
        return self._summaries


class NativeObserver:
    """Lets nodes inside the graph fill summaries inside the library."""

    def __init__(self, model: ir.Model, start: Mapping[str, Summary], threads: int, others: Sequence[str] = ()) -> None:
        self._summaries = {name: NativeSummary(summary) for name, summary in start.items()}
        tapped = model.clone()
        numbers = {name: summary.number for name, summary in self._summaries.items()}
        observe = ObserveValues(dict.fromkeys(others, 0) | numbers)
        observe(tapped)
        self.hidden = [name for name in observe.missing if name in numbers]
        self._session = _session(tapped, threads, blocked=not any(s.axis is not None for s in start.values()))
        # Nothing is fetched that nobody looks at; but onnxruntime wants one output at least.
        self._outputs = self._session.outputs[:1]

    def run(self, sample: Feed) -> None:
        self._session.run(sample, self._outputs)
        for summary in self._summaries.values():
            summary.end_batch()

    def read(self) -> dict[str, Summary]:
        return {name: summary.read() for name, summary in self._summaries.items()}


def _session(tapped: ir.Model, threads: int, *, blocked: bool) -> Session:
    """A session on a model with `Observe` nodes.

    Args:
        blocked: whether channels may be seen in any order.
    """
    convolves = any(graph.is_op(node, "Conv") for node in graph.nodes(tapped))
    if not (blocked and convolves and write.nbytes_to_write(tapped) <= BLOCKED_BYTES):
        return whole_session(tapped, threads)
    with staging.scratch() as folder:
        path = folder / "optimized.onnx"
        session = Session(tapped, threads=threads, save_optimized=path)
        optimized = load_written(path)
        # What lay beside the model still does: onnxruntime writes the places down as they were.
        ir.external_data.set_base_dir(optimized.graph, data_folder(tapped) or str(folder))
        UniqueNames()(optimized)  # it calls the values that it adds to a subgraph as those of the graph around
        if not ObserveBeforeReorder()(optimized).modified:
            return session
        return Session(optimized, threads=threads, optimize=False)

"""Histograms of activations, the range that a file gives each, and those that other methods would have chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxq import collectors
from onnxq.calibration.calibrate import Keep, observe
from onnxq.errors import BadRecipe
from onnxq.model import graph
from onnxq.progress import QUIET, Progress
from onnxq.report.document import Activation
from onnxq.samples.source import Data
from onnxq.summaries.histogram import Histogram
from onnxq.summaries.summary import Summary

#: Bars of a histogram, and histograms at most: those that are cut off most.
BARS, MOST = 64, 400

Ends = tuple[float, float]
#: The numbers that codes reach, and the step between two of them.
Codes = tuple[float, float, float]


def ranges_in(quantized: ir.Model) -> dict[str, Codes]:
    """The least and the largest number that the codes of each activation reach, and their step, by its name, as
    QuantizeLinear nodes have them."""
    found: dict[str, Codes] = {}
    for node in graph.nodes(quantized):
        if node.op_type != "QuantizeLinear" or node.inputs[0] is None or graph.constant(node.inputs[0]) is not None:
            continue
        scale = graph.constant(node.inputs[1])
        zero = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if scale is None or scale.size != 1 or (len(node.inputs) > 2 and (zero is None or not zero.size)):
            continue
        dtype = ir.DataType.UINT8 if zero is None else zero.dtype
        if dtype not in (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16):
            continue
        info, step = np.iinfo(dtype.numpy()), float(scale.numpy().astype(np.float64).reshape(-1)[0])
        at = 0 if zero is None else int(zero.numpy().reshape(-1)[0])
        found.setdefault(node.inputs[0].name or "", ((info.min - at) * step, (info.max - at) * step, step))
    return found


def activations_of(
    model: ir.Model, chosen: dict[str, Codes], data: Data, progress: Progress = QUIET
) -> list[Activation]:
    """What a run of a model over `data` sees of the activations that `chosen` names, those that are cut off most first.

    Args:
        model: the float one, prepared; or a quantized one, for activations that it has scaled.
    """
    known = {value.name for each in graph.graphs(model) for value in each.inputs}
    known |= {value.name for node in graph.nodes(model) for value in node.outputs}
    names = [name for name in chosen if name in known]
    if not names:
        return []

    def start(runs: int) -> None:
        progress.start("looking at activations", runs, "samples")

    seen = observe(model, names, data, Keep(), start=start, progress=progress.advance)
    ways: dict[str, dict[str, Ends]] = {}
    for method in collectors.names():
        try:
            for name, found in seen.ranges(method).values.items():
                ways.setdefault(name, {})[method] = (found.low, found.high)
        except BadRecipe:  # a method that needs something else of the samples
            continue
    return most_clipped(_made(seen.summaries, chosen, ways))


def most_clipped(activations: Iterable[Activation]) -> list[Activation]:
    """`MOST` of them at most, those that are cut off most first."""
    return sorted(activations, key=lambda each: -(each.clipped or 0.0))[:MOST]


def _made(
    summaries: Mapping[str, Summary], chosen: dict[str, Codes], ways: dict[str, dict[str, Ends]]
) -> Iterator[Activation]:
    for name, summary in summaries.items():
        h = summary.histogram
        if h is None or not h.counts.size or not summary.finite:
            continue
        h = h.coarsened(BARS)
        yield Activation(
            name,
            summary.low,
            summary.high,
            h.first * h.width,
            h.width,
            [int(count) for count in h.counts],
            chosen[name][:2],
            ways.get(name, {}),
            _clipped(summary.histogram, chosen[name]),
        )


def _clipped(h: Histogram | None, codes: Codes) -> float | None:
    """The share of the numbers that lie outside, by the middles of fine bins; what is outside by less than half a step
    is rounded as well as what is inside."""
    if h is None or not h.counts.sum():
        return None
    low, high, step = codes
    centers, half = h.centers(), h.width / 2 + step / 2
    outside = (centers + half < low) | (centers - half > high)
    return float(h.counts[outside].sum() / h.counts.sum())

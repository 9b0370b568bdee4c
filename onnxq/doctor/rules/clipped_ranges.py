"""Ranges that cut off what samples need."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import codes_of
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.errors import OnnxqError
from onnxq.model import graph
from onnxq.quality import arrays_of
from onnxq.runtime.session import Feed, Session

#: Share of the numbers outside the range. Calibration may leave out a few on purpose.
SHARE = 0.01
#: A range that holds all samples has to be this much better for the outputs: share of the noise that is left.
BETTER = 0.8
#: Samples on which that is measured at most, and ranges: each is two models, run without the optimizer.
SAMPLES, MEASURED = 2, 8


class ClippedRanges(Rule):
    """Told by the user's samples. What lies below a least code of zero is cut off on purpose, as by a Relu; and what is
    outside by less than half a step is rounded as well as what is inside. A shorter range with finer steps may also
    serve the outputs better than one that holds everything: then it is no fault.
    """

    severity = Severity.WARNING
    what = "more of the samples' numbers than 1 in 100 lie outside the range of their codes"
    why = "they are all rounded to the end of it"
    fix = "calibrate it again, with samples like these"

    def find(self, patient: Patient) -> Iterator[Finding]:
        measured, feeds = 0, functools.cache(lambda: _feeds(patient))
        as_is = functools.cache(lambda: _outputs(patient.model, feeds()))
        for node, value, codes, summary in patient.ranges():
            if summary.histogram is None:
                continue
            centers, counts = summary.histogram.centers(), summary.histogram.counts
            outside = centers > codes.high + codes.scale / 2
            if not codes.is_least_zero:
                outside |= centers < codes.low - codes.scale / 2
            share = float(counts[outside].sum()) / max(1, int(np.sum(counts)))
            if share > SHARE:
                measured += 1
                if measured <= MEASURED and _is_harmless(patient, feeds, as_is, node, (summary.low, summary.high)):
                    continue
                what = f"{share:.1%} of '{value.name}' lie outside [{codes.low:.4g}, {codes.high:.4g}]"
                samples = f"samples go from {summary.low:.4g} to {summary.high:.4g}"
                yield self.at(node.name or "", f"{what}: {samples}")


def _feeds(patient: Patient) -> list[Feed]:
    return [feed for feed, _ in zip(patient.data or (), range(SAMPLES), strict=False)]


def _is_harmless(
    patient: Patient,
    feeds: Callable[[], list[Feed]],
    as_is: Callable[[], list[np.ndarray]],
    node: ir.Node,
    seen: tuple[float, float],
) -> bool:
    """Whether the outputs are no better with a range that holds all samples.

    Measured: the model as it is, and with that range, against one in which this value is not rounded at all. Where the
    model cannot be rewritten so, it is not known: False.

    Args:
        feeds: gives the samples.
        as_is: gives the outputs of the model as it is.
        seen: the lowest and the highest number of the value in the samples.
    """
    if patient.data is None or any(not graph.is_op(use.node, "DequantizeLinear") for use in node.outputs[0].uses()):
        return False
    try:
        plain, wide = (
            _outputs(_rewritten(patient.model, node.name or "", ends), feeds())
            for ends in ((), (min(seen[0], 0.0), max(seen[1], 0.0)))
        )
        return _noise(wide, plain) > BETTER * _noise(as_is(), plain)
    except OnnxqError:
        return False


def _rewritten(model: ir.Model, name: str, ends: tuple[float, ...]) -> ir.Model:
    """The model with a value rounded within `ends`; (): not rounded."""
    made = model.clone()
    node = next(each for each in graph.nodes(made) if each.name == name and each.op_type == "QuantizeLinear")
    readers, x = [use.node for use in node.outputs[0].uses()], node.inputs[0]
    if not ends and x is not None:
        for reader in readers:
            reader.outputs[0].replace_all_uses_with(x, replace_graph_outputs=True)
        return made
    codes = codes_of(node)
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if codes is None or scale is None or scale.dtype is None or not isinstance(node.graph, ir.Graph):
        raise OnnxqError(f"the range of '{name}' cannot be changed")
    most, least = (1 << (codes.type.bitwidth - codes.type.is_signed())) - 1, 0
    if codes.type.is_signed():
        least = -most - 1
    if zero is None:  # which is 0
        step, at = max(ends[1] / most, ends[0] / least if least else 0.0), 0
    else:
        step = (ends[1] - ends[0]) / (most - least)
        at = round(least - ends[0] / step) if 0 < step < math.inf else 0
    with np.errstate(over="ignore"):
        numbers = [np.array(step, scale.dtype.numpy()), np.array(at, codes.type.numpy())]
    if not 0 < numbers[0] < np.inf or any((len(each.inputs) > 2) != (zero is not None) for each in readers):
        raise OnnxqError(f"the range of '{name}' cannot be changed")
    names = graph.Names(made)
    wider = [graph.add_constant(node.graph, names.fresh(f"{name}_wide"), ir.tensor(x)) for x in numbers]
    for each in (node, *readers):
        each.replace_input_with(1, wider[0])
        if zero is not None:
            each.replace_input_with(2, wider[1])
    return made


def _outputs(model: ir.Model, feeds: list[Feed]) -> list[np.ndarray]:
    """Those in floats, of sequences each part."""
    session = Session(model, optimize=False)
    return [y for feed in feeds for output in session.run(feed) for y in arrays_of(output) if y.dtype.kind == "f"]


def _noise(outputs: list[np.ndarray], right: list[np.ndarray]) -> float:
    """Mean share of noise in the outputs, each relative to its own power.

    Raises:
        OnnxqError: they are not of the same sizes, as where a model gives what it has found.
    """
    if [y.shape for y in outputs] != [y.shape for y in right]:
        raise OnnxqError("the outputs cannot be compared")
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(outputs, right, strict=True) if a.size]
    with np.errstate(all="ignore"):  # of what is no number, no comparison is true
        return float(np.mean([((a - b) ** 2).mean() / ((b**2).mean() or 1.0) for a, b in pairs] or [0.0]))

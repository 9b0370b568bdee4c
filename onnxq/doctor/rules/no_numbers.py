"""Weights that are NaN or infinite: what they reach is lost, and everything passes for the same as it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph
from onnxq.model.weights import find_weights


class NoNumbers(Rule):
    """NaN in any constant, infinity in a weight: masks hold infinities on purpose. Scales have a rule of their own."""

    severity = Severity.ERROR
    what = "a constant holds NaN, or a weight infinity"
    why = "whatever it reaches is no number, and cannot be compared with anything"
    fix = "export the model again, from a checkpoint whose numbers are finite"

    def find(self, patient: Patient) -> Iterator[Finding]:
        weights = {weight.value.name: weight.node.name for weight in find_weights(patient.model)}
        for value in (each for part in graph.graphs(patient.model) for each in part.initializers.values()):
            tensor = value.const_value
            if tensor is None or tensor.dtype not in graph.FLOATS or _is_scale(value):
                continue
            x = tensor.numpy()
            wrong = ~np.isfinite(x) if value.name in weights else np.isnan(x)
            count = int(np.count_nonzero(wrong))
            if count:
                at = [int(i) for i in np.argwhere(wrong)[0]]
                found = float(x[tuple(at)])
                many = f", and {count - 1} more" if count > 1 else ""
                place = weights.get(value.name) or (value.name or "")
                yield self.at(place, f"'{value.name}' holds {found} at {at}{many}")


def _is_scale(value: ir.Value) -> bool:
    """Whether quantizing operators alone read it."""
    nodes = [use.node for use in value.uses()]
    return bool(nodes) and all("Quantize" in node.op_type for node in nodes)

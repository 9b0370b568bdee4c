"""Constants that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph


class UnusedInitializers(Rule):
    """Left behind by tools that wrote another form of a weight beside the old one. Mended by leaving them out."""

    severity = Severity.NOTE
    what = "a constant is stored that nothing reads"
    why = "the file is larger than it needs to be"
    fix = "leave it out; --fix does"
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        for value in _unused(patient.raw):
            nbytes = value.const_value.nbytes if value.const_value is not None else 0
            yield self.at(value.name or "", f"nothing reads these {nbytes} bytes")

    def mend(self, model: ir.Model) -> bool:
        found = list(_unused(model))
        for value in found:
            assert isinstance(value.graph, ir.Graph)
            del value.graph.initializers[value.name or ""]
        return bool(found)


def _unused(model: ir.Model) -> Iterator[ir.Value]:
    """Those that are no input either: of old models all are, and callers may give them."""
    for each in graph.graphs(model):
        for value in list(each.initializers.values()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                yield value

"""The same constant several times in the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.encoding import lazy
from onnxq.model import graph

#: Smaller ones are not worth a word.
LEAST_BYTES = 1024


class DuplicatedWeights(Rule):
    """Mended by one constant that all read. Those of different graphs, or that a caller may replace, stay."""

    severity = Severity.NOTE
    what = "the same bytes are stored several times"
    why = "the file, and the memory that it takes, are larger than they need to be"
    fix = "store them once; --fix does"
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        for first, others in _duplicates(patient.raw):
            named = ", ".join(f"'{value.name}'" for value in others[:3])
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            tensor = first.const_value
            nbytes = 0 if tensor is None else tensor.nbytes * len(others)
            yield self.at(
                first.name or "",
                f"{named}{more} hold{'s' if len(others) == 1 else ''} the same {nbytes / len(others):.0f} bytes",
            )

    def mend(self, model: ir.Model) -> bool:
        found = list(_duplicates(model))
        for first, others in found:
            for value in others:
                value.replace_all_uses_with(first)
                assert isinstance(value.graph, ir.Graph)
                del value.graph.initializers[value.name or ""]
        return bool(found)


def _duplicates(model: ir.Model) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
    """Of each group the first one, and the others."""
    for each in graph.graphs(model):
        groups: dict[tuple[object, ...], list[ir.Value]] = {}
        for value in each.initializers.values():
            tensor = graph.constant(value)
            if tensor is None or tensor.nbytes < LEAST_BYTES or value.is_graph_output() or tensor.dtype.is_string():
                continue
            digest = hashlib.blake2b(tensor.tobytes(), digest_size=16).digest()
            lazy.release(tensor)
            groups.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), digest), []).append(value)
        for first, *others in groups.values():
            if others:
                yield first, others

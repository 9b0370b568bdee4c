"""Operators of a domain that the target does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph

#: Every runtime has these, or says that it is none.
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")


class MissingDomain(Rule):
    """Of `--target`. A domain whose operators are functions in the file runs everywhere, only slower."""

    severity = Severity.ERROR
    what = "an operator is of a domain that the target does not have"
    why = "the model does not open there"
    fix = "let 'onnxq convert --to' write it for that target"

    def find(self, patient: Patient) -> Iterator[Finding]:
        bodies = {(domain, name) for domain, name, _ in patient.raw.functions}
        have = {*_STANDARD, *patient.target.domains}
        if patient.target.has_onnxq_ops:  # whose files open in onnxruntime
            have.add(graph.MICROSOFT)
        places: dict[tuple[str, str], list[str]] = {}
        for node in patient.nodes:
            if node.domain not in have and (node.domain, node.op_type) not in bodies:
                places.setdefault((node.domain, node.op_type), []).append(node.name or "")
        counts = Counter({key: len(names) for key, names in places.items()})
        for (domain, op), count in counts.items():
            nodes = "node" if count == 1 else "nodes"
            yield self.at(
                places[domain, op][0], f"{count} {nodes} {domain}::{op}, which {patient.target.name} does not have"
            )

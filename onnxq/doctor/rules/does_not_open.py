"""A model that onnxruntime refuses."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule


class DoesNotOpen(Rule):
    """Whatever else is wrong, this is worse. Told by a process of its own, which is tried first."""

    severity = Severity.ERROR
    what = "onnxruntime does not open the model, or crashes"
    why = "it does not run on this machine"
    fix = "see what it says; a newer onnxruntime may know the operator, or have mended the crash"

    def find(self, patient: Patient) -> Iterator[Finding]:
        if patient.refusal:
            yield self.at("", patient.refusal.removesuffix("; --no-check quantizes without running it"))
        elif patient.crash:  # of inputs that were made up, real ones may be none
            yield self.at("", patient.crash, severity=None if patient.data is not None else Severity.WARNING)

"""A model that onnxruntime refuses."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule


class DoesNotOpen(Rule):
    """Whatever else is wrong, this is worse."""

    severity = Severity.ERROR
    what = "onnxruntime does not open the model"
    why = "nothing of it runs on this machine"
    fix = "see what it says; a newer onnxruntime may know the operator"

    def find(self, patient: Patient) -> Iterator[Finding]:
        if patient.refusal:
            yield self.at("", patient.refusal.removesuffix("; --no-check quantizes without running it"))

"""A model that onnxruntime refuses."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq import formats
from onnxq.checking.spelled import new_types
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
        missing = new_types(patient.path) if patient.refusal else ""
        if missing and any(not formats.get(word).is_integer for word in patient.target.spelled):
            says = f"onnxruntime has no kernels for {missing} here, which {patient.target.name} has: it was not run"
            yield self.at("", says, "run it there", Severity.NOTE)
        elif missing:
            fix = "give --target if it is for a runtime that has them; 'onnxq convert' writes it for others"
            yield self.at("", f"onnxruntime has no kernels for {missing}", fix)
        elif patient.refusal:
            yield self.at("", patient.refusal.removesuffix("; --no-check quantizes without running it"))
        elif patient.crash:  # of inputs that were made up, real ones may be none
            yield self.at("", patient.crash, severity=None if patient.data is not None else Severity.WARNING)

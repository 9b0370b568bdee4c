"""Convolutions of integers by the kernel that is slower than the one of floats."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph


class SlowConvolutions(Rule):
    """What onnxruntime.quantization.quantize_dynamic makes of convolutions. A model with five of them ran 7.4 times as
    long as in float on an Intel Xeon with AMX (onnxruntime 1.31.1).
    """

    severity = Severity.WARNING
    what = "a convolution is a ConvInteger"
    why = "onnxruntime has no fast kernel for it: several times slower than in float"
    fix = "quantize convolutions with fixed ranges (-s w8a8 --data), or leave them in float"

    def find(self, patient: Patient) -> Iterator[Finding]:
        ran = {kernel.name for kernel in patient.kernels if kernel.op == "ConvInteger"}
        for node in patient.nodes:
            if graph.is_op(node, "ConvInteger") and node.name in ran:
                yield self.at(node.name or "", "it measures its ranges in every run and computes by ConvInteger")

"""A Relu in front of codes that go below zero."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import codes_of, quantizers, reads_codes
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph
from onnxq.runtime import known


class ReluZeroPoint(Rule):
    """Conv, Relu and QuantizeLinear are one integer kernel only where the least code stands for 0, so that the range
    cuts off what the Relu does. Else both compute in float, and codes below zero are never used.
    """

    severity = Severity.WARNING
    what = "behind a Relu the least code does not stand for zero"
    why = "the Relu keeps its convolution from becoming an integer kernel, and codes below zero are never used"
    fix = "calibrate what is behind the Relu as uint8 with zero point 0 (or int8 with -128)"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for node in patient.nodes:
            before = node.inputs[0].producer() if graph.is_op(node, "Relu") and node.inputs[0] is not None else None
            if before is None or not graph.is_op(before, *known.ABSORBING, "Gemm") or not reads_codes(before):
                continue
            for quantize in quantizers(node.outputs[0]) or ():
                codes = codes_of(quantize)
                if codes is not None and not codes.is_least_zero:
                    yield self.at(
                        node.name or "",
                        f"'{node.outputs[0].name}' is never below zero, but its codes go from {codes.low:.3g} on, with "
                        f"zero point {codes.zero}: '{before.name}' computes in float",
                    )

"""Convolutions of codes whose result nobody makes codes of."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import dequantizer, quantizers, reads_codes, result_of
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import constant_of
from onnxq.model import graph


class NoOutputPair(Rule):
    """A convolution becomes an integer kernel only with a QuantizeLinear behind it. A MatMul needs none."""

    severity = Severity.NOTE
    what = "a convolution reads codes and weights in codes, but no QuantizeLinear is behind it"
    why = "it computes in float, and both of its inputs are converted first"
    fix = "round its output too, or leave its inputs in float"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for node in patient.nodes:
            if not graph.is_op(node, "Conv") or not reads_codes(node) or dequantizer(node.inputs[0]) is None:
                continue
            weight = node.inputs[1].producer() if node.inputs[1] is not None else None
            is_codes = (
                weight is not None and graph.is_op(weight, "DequantizeLinear") and constant_of(weight, 0) is not None
            )
            if is_codes and not quantizers(result_of(node)) and not quantizers(node.outputs[0]):
                yield self.at(
                    node.name or "", f"the output '{result_of(node).name}' stays float, so the convolution does"
                )

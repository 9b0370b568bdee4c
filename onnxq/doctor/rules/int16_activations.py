"""Activations in 16 bits, which processors have no kernels for."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import code_type
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph


class Int16Activations(Rule):
    """A format of neural engines: onnxruntime's processor kernels compute it in float, between two conversions."""

    severity = Severity.WARNING
    what = "activations are rounded to 16 bits"
    why = "onnxruntime has no integer kernels for them on processors: it converts, computes in float and converts back"
    fix = "calibrate to uint8 for processors; 16 bits are for engines that compute in them"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for node in patient.nodes:
            if graph.is_op(node, "QuantizeLinear") and graph.constant(node.inputs[0]) is None:
                kind = code_type(node)
                if kind in (ir.DataType.INT16, ir.DataType.UINT16):
                    value = node.inputs[0]
                    name = value.name if value is not None else ""
                    yield self.at(
                        node.name or "",
                        f"'{name}' is rounded to {kind.name.lower()}: it costs time and nothing is fused",
                    )

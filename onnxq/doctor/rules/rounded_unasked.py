"""Weights in float that onnxruntime rounds to int8 when it loads the model."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.passes.fusing.keep_in_float import KeepInFloat, rounded_unasked, sure_types


class RoundedUnasked(Rule):
    """What becomes of a node that was excluded from quantization, between nodes that were not: `KeepInFloat`."""

    severity = Severity.WARNING
    what = "a node that is in float in the file computes in int8, with one scale for all its weights"
    why = "what was kept in float for its accuracy is less accurate than in int8 with a scale for each channel"
    fix = "--fix gives it codes that onnxruntime leaves alone"
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        if patient.target.consumer:
            return
        ran = {(kernel.name, kernel.op) for kernel in patient.kernels}
        types = functools.cache(lambda: sure_types(patient.model))
        for each in rounded_unasked(patient.model):
            node = each.node
            if node.op_type == "MatMul" and (node.name, "MatMul") in ran:  # of sizes that it does not know
                continue
            message = f"onnxruntime rounds the weights of this {node.op_type} to int8 when it loads the model"
            size = each.axis(types())[1]
            yield self.at(node.name or "", message, "" if size > 1 else IN_VAIN, mends=size > 1)

    def mend(self, model: ir.Model) -> bool:
        return bool(KeepInFloat()(model).modified)


IN_VAIN = "quantize it with a scale for each channel, or its neighbours not at all"

"""Weights in codes that become floats again in every run."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import reads_codes
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import constant_of
from onnxq.model import graph
from onnxq.model.weights import MIN_ELEMENTS
from onnxq.passes.fusing.part_clips import PartClips, clip_behind

#: Fewer codes cost microseconds: that is a note.
LARGE = 1 << 16
PARTED = "spell it as Max and Min, which --fix does, or let 'onnxq convert --to ort-cpu' write packed products"


class UnpackedInEveryRun(Rule):
    """Told by the kernels that ran. onnxruntime keeps DequantizeLinear of a constant for fusions to take; where none
    does, it runs each time. That happens to blocks whose MatMul has a Relu or Clip right behind it that other nodes
    read (measured on 1.31.1), which is mended: Max and Min compute the same, and keep nothing from being fused.
    """

    severity = Severity.WARNING
    what = "a weight in codes is unpacked in every run"
    why = "no fusion takes its DequantizeLinear, which is slower than a float weight and no smaller in memory"
    fix = (
        "let 'onnxq convert --to ort-cpu' write packed products, or Cast and Mul in its place, which are folded at load"
    )
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        ran = {kernel.name.removesuffix("/duplicated") for kernel in patient.kernels if kernel.op == "DequantizeLinear"}
        for node in patient.nodes:
            codes = constant_of(node, 0) if graph.is_op(node, "DequantizeLinear") else None
            if codes is None or codes.size < MIN_ELEMENTS or node.name not in ran:
                continue
            readers = [use.node for use in node.outputs[0].uses()]
            if not any(reads_codes(reader) for reader in readers):
                clip = next((behind for reader in readers if (behind := clip_behind(reader)) is not None), None)
                what = (
                    f"'{node.inputs[0].name if node.inputs[0] else ''}' of {codes.size} codes is unpacked in every run"
                )
                severity = self.severity if codes.size >= LARGE else Severity.NOTE
                if clip is None:
                    yield self.at(node.name or "", what, severity=severity, mends=False)
                else:
                    why = f"the {clip.op_type} behind its MatMul keeps the two from being fused"
                    yield self.at(node.name or "", f"{what}: {why}", PARTED, severity)

    def mend(self, model: ir.Model) -> bool:
        return bool(PartClips()(model).modified)

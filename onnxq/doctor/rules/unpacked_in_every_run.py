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

#: Fewer codes cost microseconds: that is a note.
LARGE = 1 << 16


class UnpackedInEveryRun(Rule):
    """Told by the kernels that ran. onnxruntime keeps DequantizeLinear of a constant for fusions to take; where none
    does, it runs each time. That
    happens to blocks whose MatMul has a Relu right behind it that other nodes read (measured on 1.31.1).
    """

    severity = Severity.WARNING
    what = "a weight in codes is unpacked in every run"
    why = "no fusion takes its DequantizeLinear, which is slower than a float weight and no smaller in memory"
    fix = (
        "let 'onnxq convert --to ort-cpu' write packed products, or Cast and Mul in its place, which are folded at load"
    )

    def find(self, patient: Patient) -> Iterator[Finding]:
        ran = {kernel.name.removesuffix("/duplicated") for kernel in patient.kernels if kernel.op == "DequantizeLinear"}
        for node in patient.nodes:
            codes = constant_of(node, 0) if graph.is_op(node, "DequantizeLinear") else None
            if codes is None or codes.size < MIN_ELEMENTS or node.name not in ran:
                continue
            readers = [use.node for use in node.outputs[0].uses()]
            if not any(reads_codes(reader) for reader in readers):
                what = f"'{node.inputs[0].name if node.inputs[0] else ''}' of {codes.size} codes"
                severity = self.severity if codes.size >= LARGE else Severity.NOTE
                yield self.at(node.name or "", f"{what} is unpacked in every run{_why(readers)}", severity=severity)


def _why(readers: list[ir.Node]) -> str:
    behind = [graph.only_consumer(reader.outputs[0]) for reader in readers if graph.is_op(reader, "MatMul")]
    return ": the Relu behind its MatMul keeps the two from being fused" if any(map(_is_relu, behind)) else ""


def _is_relu(node: ir.Node | None) -> bool:
    return graph.is_op(node, "Relu")

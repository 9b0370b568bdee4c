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
from onnxq.passes.fusing.part_products import PartProducts, in_the_way, shares_codes, shares_scales, unpacking

#: Fewer codes cost microseconds: that is a note.
LARGE = 1 << 16
PARTED = "--fix spells it in another way (Max and Min, Sum); or let 'onnxq convert --to ort-cpu' write packed products"


class UnpackedInEveryRun(Rule):
    """Told by the kernels that ran. onnxruntime keeps DequantizeLinear of a constant for fusions to take; where none
    does, it runs each time. That happens to blocks whose MatMul has a Relu, Clip or Add right behind it, or whose
    scales others read, and is mended (`passes/fusing/part_products.py`); and to codes that several nodes read.
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
                name = node.inputs[0].name if node.inputs[0] is not None else ""
                what = f"'{name}' of {codes.size} codes is unpacked in every run"
                severity = self.severity if codes.size >= LARGE else Severity.NOTE
                why, mends = _why(readers)
                yield self.at(node.name or "", f"{what}{why}", PARTED if mends else "", severity, mends=mends)

    def mend(self, model: ir.Model) -> bool:
        return bool(PartProducts()(model).modified)


def _why(readers: list[ir.Node]) -> tuple[str, bool]:
    """What keeps a weight from being fused with those who read it, as far as that is known; whether it is mended."""
    for reader in readers:
        behind, unpack = in_the_way(reader), unpacking(reader)
        if unpack is not None and shares_codes(unpack):
            return ": several nodes read these codes, and then onnxruntime fuses none", False
        if behind is not None:
            return f": the {behind.op_type} behind its MatMul keeps the two from being fused", True
        if unpack is not None and shares_scales(unpack):
            return ": other nodes read its scales too, and then onnxruntime fuses none", True
    return "", False

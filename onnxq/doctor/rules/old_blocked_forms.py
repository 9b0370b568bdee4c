"""Blocks and 4-bit codes in a model whose opset does not have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import constant_of
from onnxq.model import graph
from onnxq.passes.restore.read_chains import ReadChains

#: The first opset with blocks and 4-bit codes in DequantizeLinear.
OPSET = 21
_SHORT = (ir.DataType.INT4, ir.DataType.UINT4)


class OldBlockedForms(Rule):
    """Tools that only change the number of the opset write DequantizeLinear on blocks, or of 4 bits, into models of an
    older one: no runtime has to take them. And blocks that older operators unpack are floats once the model is loaded.
    """

    severity = Severity.ERROR
    what = f"scales of blocks, or 4-bit codes, before opset {OPSET}"
    why = "DequantizeLinear has them from then on: runtimes may refuse the model, or read it otherwise"
    fix = f"convert the model to opset {OPSET}, or let 'onnxq convert --to onnx' write it"

    def find(self, patient: Patient) -> Iterator[Finding]:
        opset = graph.opset(patient.model)
        if opset >= OPSET:
            return
        for node in patient.nodes:
            if not graph.is_op(node, "DequantizeLinear", "QuantizeLinear"):
                continue
            block, codes = graph.attribute_int(node, "block_size", 0), constant_of(node, 0)
            if block:
                yield self.at(node.name or "", f"block_size is {block}, which opset {opset} does not have")
            elif codes is not None and codes.dtype in _SHORT:
                yield self.at(node.name or "", f"{codes.dtype.name.lower()} codes, which opset {opset} does not have")
        for name in _chains(patient.model):
            what = f"blocks unpacked by operators of opset {opset}: small in the file, floats once it is loaded"
            yield self.at(name, what, "let 'onnxq convert --to ort-cpu' write it as packed products", Severity.NOTE)


class _Seen(ReadChains):
    """Remembers what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def restore(self, node: ir.Node, restored: Any) -> bool:
        name, found = node.name or "", super().restore(node, restored)
        self.names += [name] * found
        return found


def _chains(model: ir.Model) -> list[str]:
    """Nodes at which blocks of codes become floats."""
    seen = _Seen()
    seen(model.clone())
    return seen.names

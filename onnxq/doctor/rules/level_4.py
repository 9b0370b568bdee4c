"""Products of floats by packed weights that round the floats too, unasked."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.stored import StoredWeight
from onnxq.model import graph
from onnxq.runtime import known


class Level4(Rule):
    """onnxruntime fuses DequantizeLinear on blocks along K, and the MatMul behind it, to MatMulNBits with
    accuracy_level 4, which rounds activations to 8 bits: 44 to 46 dB in the place of 136. It is the fast level too.
    """

    severity = Severity.NOTE
    what = "onnxruntime makes a MatMulNBits of accuracy level 4 of it, unasked"
    why = "activations are rounded to 8 bits inside the kernel: fast, and 44 to 46 dB where the file says exact"
    fix = "set session.qdq_matmulnbits_accuracy_level to 0 or 1 for exact products, or write MatMulNBits with a level"

    def find(self, patient: Patient) -> Iterator[Finding]:
        floats = {kernel.name for kernel in patient.kernels if kernel.op in known.FLOAT_KERNELS["MatMul"]}
        for weight in patient.weights:
            if is_fused(weight) and not is_half(weight, patient) and weight.place not in floats:
                yield self.at(
                    weight.place, f"'{weight.value.name}' in blocks of {weight.block} becomes MatMulNBits of level 4"
                )


def is_fused(weight: StoredWeight) -> bool:
    """Whether a weight is spelled so that its product becomes MatMulNBits (docs/fusion.md)."""
    direct = weight.dequantize is not None and len(weight.node.inputs) > 1
    if not direct or weight.dequantize is None or weight.node.op_type != "MatMul" or len(weight.codes.shape) != 2:
        return False
    made = weight.dequantize.outputs[0]
    is_plain = weight.node.inputs[1] is made and graph.only_consumer(made) is weight.node
    block = weight.block
    return is_plain and weight.channel == 0 and block >= 16 and block & (block - 1) == 0


def is_half(weight: StoredWeight, patient: Patient) -> bool:
    """Whether the product is one of float16."""
    kinds = (patient.types.of(weight.node.outputs[0]).dtype, None if weight.scales is None else weight.scales.dtype)
    return ir.DataType.FLOAT16 in kinds

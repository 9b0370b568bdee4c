"""float16 models with products that onnxruntime fuses to accuracy level 4."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.doctor.rules.level_4 import is_fused, is_half


class HalfLevel4(Rule):
    """Fused at the optimization levels EXTENDED and LAYOUT, such products give zeros on processors: their scales come
    through a Cast that was not folded. At the default level they are right. Measured on onnxruntime 1.31.1.
    """

    severity = Severity.WARNING
    what = "a float16 product by blocks of codes, which onnxruntime fuses to accuracy level 4"
    why = "with the graph optimizer at EXTENDED or LAYOUT it gives zeros; at the default level it is right"
    fix = "write MatMulNBits (onnxq convert --to ort-cpu), or set session.qdq_matmulnbits_accuracy_level to 0"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for weight in patient.weights:
            if is_fused(weight) and is_half(weight, patient):
                yield self.at(
                    weight.place, f"'{weight.value.name}' is multiplied in float16 in blocks of {weight.block}"
                )

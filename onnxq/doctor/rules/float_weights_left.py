"""Large weights in float, in a model that is quantized otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model.load import is_quantized
from onnxq.model.weights import find_weights

#: Smaller ones are not worth a word.
LEAST_BYTES = 1 << 14


class FloatWeightsLeft(Rule):
    """A note: what is faster or more accurate in float is left there on purpose, also by onnxq."""

    severity = Severity.NOTE
    what = "a weight is in float, although others are quantized"
    why = "it takes four times the bytes of int8, and eight times those of 4 bits"
    fix = "onnxq quantize --requantize takes what is still in float, or says why not"

    def find(self, patient: Patient) -> Iterator[Finding]:
        if is_quantized(patient.raw) is None and not patient.weights:
            return
        seen = set()
        for weight in find_weights(patient.model):
            if weight.tensor.nbytes >= LEAST_BYTES and weight.value.name not in seen:
                seen.add(weight.value.name)
                kind = weight.tensor.dtype.name.lower()
                yield self.at(
                    weight.node.name or "", f"'{weight.value.name}' is {weight.tensor.nbytes} bytes of {kind}"
                )

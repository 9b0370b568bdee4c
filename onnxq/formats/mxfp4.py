"""mxfp4: 4-bit floating point E2M1 with one power of two for 32 weights.

Source: OCP Microscaling Formats (MX) Specification v1.0, section 5.3 and 6.3; halfway between two levels the one nearer
to zero is taken, and zero has one code, as ggml's quantize_row_mxfp4_ref does.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import E8M0, CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import codebook, fast

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
LEVELS = np.concatenate([MAGNITUDES, -MAGNITUDES])
#: Exponent of the largest level.
EMAX = 2


class mxfp4(Format):
    """Codes 0…15 index `LEVELS` (sign in bit 3); the scale is 2^(floor(log2 absmax) − 2), which clips beyond 6."""

    name = "mxfp4"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = E8M0
    default_block: int | None = 32
    has_fixed_block = True
    levels = LEVELS
    tables = codebook.signed_tables(MAGNITUDES, negative_zero=0)
    powers_of_two = True
    rule = Rule(Fit.MICRO)
    kernel = "mxfp4"
    gguf = "MXFP4"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        exponent = np.frexp(codebook.fit(w, granularity))[1] - 1
        zero = codebook.fit(w, granularity) == 0
        return np.ldexp(np.float32(1), np.where(zero, -127, np.clip(exponent - EMAX, -127, 127))), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        made = fast.encode(self, w, granularity) if scales is None else None
        if made is not None:
            return made
        if scales is None:
            scales, _ = self.fit(w, granularity)
        codes = codebook.codes(w, granularity, scales, self.tables)
        return QuantizedTensor(self, granularity, codes, scales.astype(E8M0))

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return codebook.decode(q, LEVELS)

"""fp4: 4-bit floating point of bitsandbytes: sign, two exponent bits, one mantissa bit, times the block's absmax.

Source: bitsandbytes' FP4 table as onnxruntime's MatMulBnb4 reads it (quant_type 0).
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import codebook

LEVELS = np.array(
    [
        0.0,
        0.0052083334885537624,
        0.6666666865348816,
        1.0,
        0.3333333432674408,
        0.5,
        0.1666666716337204,
        0.25,
        0.0,
        -0.0052083334885537624,
        -0.6666666865348816,
        -1.0,
        -0.3333333432674408,
        -0.5,
        -0.1666666716337204,
        -0.25,
    ],
    dtype=np.float32,
)


class fp4(Format):
    """Codes 0…15 index `LEVELS`; one float32 absmax a block."""

    name = "fp4"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 64
    levels = LEVELS
    tables = codebook.plain_tables(LEVELS)
    rule = Rule(Fit.LEVELS)
    kernel = "fp4"
    bnb4 = 0

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return codebook.fit(w, granularity), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return codebook.encode(self, w, granularity, scales, self.tables)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return codebook.decode(q, LEVELS)

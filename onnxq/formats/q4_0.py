"""q4_0: GGUF blocks of 4-bit integers.

Source: ggml's block_q4_0, in Python in gguf's quants.py.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine, gguf


class q4_0(Format):
    """Codes -8…7 (in GGUF with 8 added) times a float16 scale of the sign that puts the largest weight on -8."""

    name = "q4_0"
    bits = 4
    code_type = np.dtype(np.int8)
    scale_type: np.dtype | None = np.dtype(np.float16)
    default_block: int | None = 32
    has_fixed_block = True
    rule = Rule(Fit.GGUF_SIGNED, 7)
    kernel = "int4"
    gguf = "Q4_0"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return gguf.fit_signed(w, granularity, -8), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return gguf.encode_signed(self, w, granularity, scales)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

"""q5_0: GGUF blocks of 5-bit integers.

Source: ggml's block_q5_0, in Python in gguf's quants.py.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine, gguf


class q5_0(Format):
    """Codes -16…15 (in GGUF with 16 added) times a float16 scale of the sign that puts the largest weight on -16."""

    name = "q5_0"
    bits = 5
    code_type = np.dtype(np.int8)
    scale_type: np.dtype | None = np.dtype(np.float16)
    default_block: int | None = 32
    has_fixed_block = True
    rule = Rule(Fit.GGUF_SIGNED, 15)
    gguf = "Q5_0"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return gguf.fit_signed(w, granularity, -16), None

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

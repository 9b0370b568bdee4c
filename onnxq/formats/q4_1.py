"""q4_1: GGUF blocks of 4-bit steps above a minimum.

Source: ggml's block_q4_1, in Python in gguf's quants.py.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import gguf


class q4_1(Format):
    """Codes 0…15 times a float16 scale, plus a float16 minimum. Zero is not exact."""

    name = "q4_1"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float16)
    default_block: int | None = 32
    has_fixed_block = True
    offset_type: np.dtype | None = np.dtype(np.float16)
    gguf = "Q4_1"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, FloatArray]:
        return gguf.fit_minimum(w, granularity, 15)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return gguf.encode_minimum(self, w, granularity, scales, zero_points)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return gguf.decode_minimum(q)

"""q8_0: GGUF blocks of 8-bit integers.

Source: ggml's block_q8_0, in Python in gguf's quants.py.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine, gguf


class q8_0(Format):
    """Codes -127…127 times a float16 scale; rounding half away from zero."""

    name = "q8_0"
    bits = 8
    code_type = np.dtype(np.int8)
    scale_type: np.dtype | None = np.dtype(np.float16)
    default_block: int | None = 32
    has_fixed_block = True
    rule = Rule(Fit.GGUF_ABSMAX, 127)
    kernel = "int8"
    gguf = "Q8_0"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return gguf.fit_absmax(w, granularity), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return gguf.encode_absmax(self, w, granularity, scales)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

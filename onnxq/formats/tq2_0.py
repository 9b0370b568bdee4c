"""tq2_0: GGUF blocks of 256 ternary weights, 2 bits each.

Source: ggml's block_tq2_0, in Python in gguf's quants.py.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray, ternary
from onnxq.formats.kinds import affine, codebook


class tq2_0(Format):
    """Codes -1, 0 and 1 times a float16 scale, which is the largest magnitude."""

    name = "tq2_0"
    bits = 2
    code_type = np.dtype(np.int8)
    lowest = -1
    scale_type: np.dtype | None = np.dtype(np.float16)
    default_block: int | None = 256
    has_fixed_block = True
    widened: str | None = "int4"
    gguf: str | None = "TQ2_0"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return codebook.fit(w, granularity), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return ternary.nearest(self, w, granularity, self.fit(w, granularity)[0] if scales is None else scales)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

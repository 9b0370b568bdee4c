"""e2m1: 4-bit floating point E2M1 with a float32 scale for 16 weights: what nvfp4 is before its scales are shortened.

Source: OCP Microscaling Formats (MX) Specification v1.0, section 5.3.3, for the numbers.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import codebook
from onnxq.formats.mxfp4 import LEVELS, MAGNITUDES


class e2m1(Format):
    """Codes 0…15 index mxfp4's `LEVELS`; the scale puts the largest magnitude of a block on 6."""

    name = "e2m1"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 16
    levels = LEVELS
    tables = codebook.signed_tables(MAGNITUDES, negative_zero=0)
    kernel = "e2m1"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return codebook.fit(w, granularity) / MAGNITUDES[-1], None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        if scales is None:
            scales, _ = self.fit(w, granularity)
        return codebook.encode(self, w, granularity, scales, self.tables)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return codebook.decode(q, LEVELS)

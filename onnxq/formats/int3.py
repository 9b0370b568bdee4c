"""int3: symmetric 3-bit integers."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine


class int3(Format):
    """Codes -4…3, zero point 0; in blocks the scale has the sign that puts the largest weight on -4."""

    name = "int3"
    bits = 3
    code_type = np.dtype(np.int8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 32
    widened: str | None = "int4"
    rule = Rule(Fit.EXTREME, 3)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return affine.fit_small(w, granularity, 3), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return affine.encode_small(self, w, granularity, scales)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

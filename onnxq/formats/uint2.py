"""uint2: affine 2-bit integers."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine


class uint2(Format):
    """Affine: codes 0…3; the range of each group includes zero, so zero is exact."""

    name = "uint2"
    bits = 2
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 32
    offset_type: np.dtype | None = code_type
    widened: str | None = "int4"
    rule = Rule(Fit.RANGE, 3)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, CodeArray]:
        return affine.fit_range(w, granularity, 0, 3, self.code_type)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return affine.encode_range(self, w, granularity, scales, zero_points, 3)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

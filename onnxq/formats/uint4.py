"""uint4: affine 4-bit integers."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine


class uint4(Format):
    """Affine: codes 0…15; the range of each group includes zero, so zero is exact."""

    name = "uint4"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 32
    offset_type: np.dtype | None = code_type
    rule = Rule(Fit.RANGE, 15)
    kernel = "int4"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, CodeArray]:
        return affine.fit_range(w, granularity, 0, 15, self.code_type)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return affine.encode_range(self, w, granularity, scales, zero_points, 15)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

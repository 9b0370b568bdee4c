"""int16: symmetric 16-bit integers, for engines that compute in them; no processor kernel of onnxruntime does."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine


class int16(Format):
    """Symmetric: codes -32767…32767, zero point 0."""

    name = "int16"
    bits = 16
    code_type = np.dtype(np.int16)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = None

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return affine.fit_symmetric(w, granularity, 32767), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        if scales is None:
            scales, zero_points = self.fit(w, granularity)
        return affine.encode(self, w, granularity, scales, zero_points, -32767, 32767, self.code_type)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

"""uint16: affine 16-bit integers, for engines that compute in them; no processor kernel of onnxruntime does."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine


class uint16(Format):
    """Affine: codes 0…65535; the range of each group includes zero, so zero is exact."""

    name = "uint16"
    bits = 16
    code_type = np.dtype(np.uint16)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = None
    offset_type: np.dtype | None = code_type

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, CodeArray]:
        return affine.fit_range(w, granularity, 0, 65535, self.code_type)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return affine.encode_range(self, w, granularity, scales, zero_points, 65535)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

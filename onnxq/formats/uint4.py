"""uint4: affine 4-bit integers."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Granularity, QuantizedTensor, _affine


class uint4:
    """Affine: codes 0…15; the range of each group includes zero, so zero is exact."""

    name = "uint4"
    bits = 4
    default_block: int | None = 32

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, CodeArray]:
        return _affine.fit_range(w, granularity, 0, 15, np.dtype(np.uint8))

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return _affine.encode_range(self, w, granularity, scales, zero_points, 15)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return _affine.decode(q)

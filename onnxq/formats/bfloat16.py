"""bfloat16: the upper half of a float32."""

from __future__ import annotations

import ml_dtypes

from onnxq.formats import CodeArray, FloatArray, Granularity, QuantizedTensor, _cast


class bfloat16:
    """No scales: the code is the number."""

    name = "bfloat16"
    bits = 16
    default_block: int | None = None

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[None, None]:
        return None, None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return _cast.encode(self, w, ml_dtypes.bfloat16)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return _cast.decode(q)

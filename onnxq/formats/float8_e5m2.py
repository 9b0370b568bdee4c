"""float8_e5m2: 8-bit floating point with two fraction bits, up to 57344 (ONNX FLOAT8E5M2)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import cast


class float8_e5m2(Format):
    """The largest magnitude of a channel or tensor becomes 57344."""

    name = "float8_e5m2"
    bits = 8
    code_type = np.dtype(ml_dtypes.float8_e5m2)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = None
    opset = 19

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return cast.fit(w, granularity, self.code_type), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return cast.encode_scaled(self, w, granularity, scales)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return cast.decode_scaled(q)

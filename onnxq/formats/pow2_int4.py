"""pow2_int4: symmetric 4-bit integers whose scales are powers of two, so that rescaling is a shift."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine, pow2


class pow2_int4(Format):
    """Codes -7…7; scale 2^k, of the two powers around the exact scale the one with the least squared error."""

    name = "pow2_int4"
    bits = 4
    code_type = np.dtype(np.int8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = None
    powers_of_two = True
    kernel = "int4"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return pow2.fit(w, granularity, 7), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        if scales is None:
            scales = pow2.fit(w, granularity, 7)
        return affine.encode(self, w, granularity, scales, None, -7, 7, self.code_type)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

"""int8: symmetric 8-bit integers, the weights of integer kernels."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import affine, fast


class int8(Format):
    """Symmetric: codes -127…127, zero point 0."""

    name = "int8"
    bits = 8
    code_type = np.dtype(np.int8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = None
    rule = Rule(Fit.ABSMAX, 127)
    kernel = "int8"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return affine.fit_symmetric(w, granularity, 127), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        made = fast.encode(self, w, granularity) if scales is None else None
        if made is not None:
            return made
        if scales is None:
            scales, zero_points = self.fit(w, granularity)
        return affine.encode(self, w, granularity, scales, zero_points, -127, 127, self.code_type)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)

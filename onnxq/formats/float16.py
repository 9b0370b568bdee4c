"""float16: IEEE half precision."""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import cast


class float16(Format):
    """No scales: the code is the number."""

    name = "float16"
    bits = 16
    code_type = np.dtype(np.float16)
    scale_type: np.dtype | None = None
    default_block: int | None = None
    kernel = "float16"
    gguf = "F16"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[None, None]:
        return None, None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return cast.encode(self, w, self.code_type)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return cast.decode(q)

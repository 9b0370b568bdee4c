"""nf4_dq_bnb: nf4 with its scales quantized once more to 8 bits, by the dynamic map of bitsandbytes.

Source: see `kinds/nested.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray, nf4
from onnxq.formats.kinds import codebook, nested


class nf4_dq_bnb(Format):
    """Codes as of nf4, chosen for the exact absmax; the scales are what is left of it in 8 bits."""

    name = "nf4_dq_bnb"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 64
    levels = nf4.LEVELS
    tables = nf4.nf4.tables
    base = nf4.nf4()
    kernel = "nf4"
    nested_type = np.dtype(np.uint8)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return codebook.fit(w, granularity), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return self.nest(self.base.encode(w, granularity, scales))

    def nest(self, q: QuantizedTensor) -> QuantizedTensor:
        """The nf4 weight `q` with all its scales quantized."""
        return nested.nested(self, q, nested.nest_dynamic)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return codebook.decode(q, nf4.LEVELS)

"""nf4: 4-bit NormalFloat, the nearest of 16 quantiles of a normal distribution times the block's absmax.

Source: Dettmers et al., QLoRA (2023), appendix E.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import codebook

LEVELS = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    dtype=np.float32,
)


class nf4(Format):
    """Codes 0…15 index `LEVELS`; one float32 absmax a block."""

    name = "nf4"
    bits = 4
    code_type = np.dtype(np.uint8)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 64
    levels = LEVELS
    tables = codebook.plain_tables(LEVELS)
    rule = Rule(Fit.LEVELS)
    kernel = "nf4"
    bnb4 = 1

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return codebook.fit(w, granularity), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return codebook.encode(self, w, granularity, scales, self.tables)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return codebook.decode(q, LEVELS)

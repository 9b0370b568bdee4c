"""ternary: weights of which only the sign is left, or nothing: those of BitNet b1.58.

Source: Ma et al., The Era of 1-bit LLMs (2024), section 2: the scale is the mean magnitude, and what is nearer to zero
than half of it becomes zero. Models trained for it have one scale a tensor (`--granularity tensor`).
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine, fast, gguf


class ternary(Format):
    """Codes -1, 0 and 1 times a float32 scale."""

    name = "ternary"
    bits = 2
    code_type = np.dtype(np.int8)
    lowest = -1
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 64
    widened: str | None = "int4"

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        return mean_magnitude(w, granularity), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return nearest(self, w, granularity, self.fit(w, granularity)[0] if scales is None else scales)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)


def nearest(format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray) -> QuantizedTensor:
    """The nearest code of each weight over its scale, half away from zero; all are 0 where that is too small."""
    steps = np.clip(w * granularity.spread(gguf.reciprocal(scales.astype(np.float32)), w.shape), -1, 1)
    codes = np.copysign(np.floor(np.abs(steps) + np.float32(0.5)), steps).astype(format.code_type)
    return QuantizedTensor(format, granularity, codes, fast.stored(format, scales))


def mean_magnitude(w: FloatArray, granularity: Granularity) -> FloatArray:
    """Of each group; what fills up the last block does not count."""
    total, axes = granularity.groups(np.abs(w).astype(np.float64))
    count, _ = granularity.groups(np.ones(w.shape))
    return (total.sum(axis=axes) / np.maximum(count.sum(axis=axes), 1)).astype(np.float32)

"""uniform: plain equal spacing over [min, max], with 2 to 16 bits: `uniform3` is 8 levels, `uniform` alone 8 bits.

No integer stands for zero, so zero is exact only where the range begins with it, and no integer kernel takes it: it is
the yardstick of the theory, x ≈ scale · code + minimum.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine, arguments


class uniform(Format):
    """Codes 0…2^bits − 1; a float32 scale and a float32 minimum a group."""

    parameters = range(2, 17)
    scale_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = None
    offset_type: np.dtype | None = np.dtype(np.float32)

    def __init__(self, bits: int | None = None) -> None:
        self.name = "uniform" if bits is None else f"uniform{bits}"
        self.bits = 8 if bits is None else bits
        self.code_type = np.dtype(np.uint8 if self.bits <= 8 else np.uint16)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, FloatArray]:
        groups, axes = granularity.groups(w, "edge")
        if not groups.size:
            shape = granularity.scale_shape(w.shape)
            return np.ones(shape, np.float32), np.zeros(shape, np.float32)
        low, high = groups.min(axis=axes), groups.max(axis=axes)
        width = np.asarray(high, np.float64) - np.asarray(low, np.float64)
        return affine.usable_scale(width / ((1 << self.bits) - 1), 1), np.asarray(low)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        if scales is None or zero_points is None:
            scales, zero_points = self.fit(w, granularity)
        steps = w - granularity.spread(zero_points.astype(np.float64), w.shape)
        steps = np.rint(steps / granularity.spread(scales.astype(np.float64), w.shape))
        codes = np.clip(steps, 0, (1 << self.bits) - 1).astype(self.code_type)
        return QuantizedTensor(self, granularity, codes, scales, zero_points)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        """scale · code + minimum, rounded once: the width of a finite range can overflow float32."""
        scales, minima = arguments.present(q.scales, "scales"), arguments.present(q.zero_points, "minima")
        w = q.codes * q.granularity.spread(scales.astype(np.float64), q.shape)
        w += q.granularity.spread(minima.astype(np.float64), q.shape)
        limit = np.finfo(np.float32).max
        return np.clip(w, -limit, limit).astype(np.float32)

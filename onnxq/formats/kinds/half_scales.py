"""Scales of float32 that are written as float16."""

from __future__ import annotations

import numpy as np

from onnxq.formats import FloatArray, QuantizedTensor


def in_half_scales(w: FloatArray, q: QuantizedTensor) -> QuantizedTensor:
    """`w` by the scales of `q` as float16 holds them, and the codes that are nearest for those."""
    assert q.scales is not None
    return q.format.encode(w, q.granularity, q.scales.astype(np.float16).astype(np.float32), q.zero_points)

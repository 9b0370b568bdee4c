"""Learning the scale: where it starts, and how fast it may move.

Source: Esser et al., Learned Step Size Quantization (2020), sections 2.1 and 2.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onnxq.fake_quant.affine import AffineGrid


def initial_scale(x: NDArray, qmax: int, axis: int | None = None) -> NDArray[np.float32]:
    """2·mean|x| / √qmax of the first batch, or of the weight; 1 where `x` is zero. A number, or [channels]."""
    others = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    scale = 2 * np.mean(np.abs(x), axis=others, dtype=np.float64) / math.sqrt(qmax)
    return np.asarray(np.where(scale < np.finfo(np.float32).tiny, 1.0, scale), np.float32)


def gradient_factor(x: NDArray, grid: AffineGrid) -> float:
    """1 / √(n·qmax), n numbers for each scale: brings the gradient of the scale to the size of that of the weights."""
    return 1 / math.sqrt(max(1, x.size // max(1, grid.scale.size)) * grid.qmax)

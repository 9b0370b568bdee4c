"""Learning the scale: where it starts, and how fast it may move.

Source: Esser et al., Learned Step Size Quantization (2020), sections 2.1 and 2.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.fake_quant.affine import AffineGrid
from onnxq.formats import Granularity
from onnxq.formats.kinds import arguments


def initial_scale(x: ArrayLike, qmax: int, axis: int | None = None) -> NDArray[np.float32]:
    """2·mean|x| / √qmax of the first batch, or of the weight; 1 where `x` is zero. A number, or [channels].

    Raises:
        ValueError: `x` is empty, not finite or has no such axis; `qmax` is below 1.
    """
    x = arguments.numbers(x, "tensor")
    if not x.size or not np.isfinite(x).all() or qmax < 1:
        raise ValueError(f"a first scale needs finite numbers and a highest code above zero, not {qmax}")
    groups, axes = Granularity(axis).groups(x)
    scale = 2 * np.mean(np.abs(groups), axis=axes, dtype=np.float64) / math.sqrt(qmax)
    return np.asarray(np.where(scale < np.finfo(np.float32).tiny, 1.0, scale), np.float32)


def gradient_factor(x: ArrayLike, grid: AffineGrid) -> float:
    """1 / √(n·qmax), n numbers for each scale: brings the gradient of the scale to the size of that of the weights.

    Args:
        x: a batch, or the weight: of that its size counts.

    Raises:
        ValueError: the grid has no code above zero.
    """
    if grid.qmax < 1:
        raise ValueError(f"codes {grid.qmin}…{grid.qmax} have none above zero")
    x = arguments.numbers(x, "tensor")
    return 1 / math.sqrt(max(1, x.size // max(1, grid.scale.size)) * grid.qmax)

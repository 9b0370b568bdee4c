"""Shared by the algorithms that look at outputs: weights that make up for what layers before have changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import FloatArray

#: Parts of the whole way, one of which rows held back choose: few samples do not speak for all of it.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def making_up(w: FloatArray, shift: FloatArray, x: NDArray[np.float32], in_float: NDArray[np.float32]) -> FloatArray:
    """`w` and that part of `shift` with which the outputs on rows `x` are nearest to those of `w` on float rows.

    Args:
        w, shift: [K, N].
        x, in_float: [rows, K], the same rows as quantized layers leave them, and float ones.
    """
    if not len(x):
        return w
    with np.errstate(over="ignore", invalid="ignore"):
        left, taken = (in_float - x) @ w, x @ shift
        errors = [float(np.square(left - np.float32(part) * taken).sum(dtype=np.float64)) for part in STRENGTHS]
    best = STRENGTHS[int(np.argmin(errors))]
    return w + np.float32(best) * shift if np.isfinite(errors).all() else w

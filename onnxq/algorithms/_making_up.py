"""Shared by the algorithms that look at outputs: weights that make up for what layers before have changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import FloatArray

#: Part of the mean square of all inputs that is added to each one's: without, what a few rows have in common by chance
#: is made up for too. As many times more as rows are fewer than so many for each input.
DAMPING, ROWS_PER_INPUT = 0.3, 4
#: Parts of the whole way, one of which rows held back choose: few samples do not speak for all of it.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def shift_of(sums: NDArray[np.float32], cross: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """[groups, K, K]: times weights, what is to be added to them so that outputs stay where they were in float.

    Args:
        sums: of products of rows with themselves, 1 on average on the diagonal, and damped.
        cross: of products of rows with what they are less in float.
        rows: how many there were.
    """
    k = sums.shape[-1]
    damping = DAMPING * max(1.0, ROWS_PER_INPUT * k / max(1, rows))
    with np.errstate(over="ignore", invalid="ignore"):  # `making_up` looks at what comes of it
        return np.linalg.solve(sums + np.float32(damping) * np.eye(k, dtype=np.float32), cross).astype(np.float32)


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

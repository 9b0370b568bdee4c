"""Shared by the algorithms that look at outputs: weights that make up for what layers before have changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms._cholesky import factor, solve
from onnxq.formats import FloatArray

#: Part of the mean square of all inputs that is added to each one's: without, what a few rows have in common by chance
#: is made up for too. As many times more as rows are fewer than so many for each input.
DAMPING, ROWS_PER_INPUT = 0.3, 4
#: Parts of the whole way, one of which rows held back choose: few samples do not speak for all of it.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, eq=False)
class Shift:
    """Times weights, what is to be added to them so that outputs stay where they were in float.

    Attributes:
        lower: [K, K], times its transpose the sums of products of rows with themselves, damped.
        cross: [K, K], of products of rows with what they are less in float.
    """

    lower: NDArray[np.float32]
    cross: NDArray[np.float32]

    @classmethod
    def of(cls, sums: NDArray[np.float32], cross: NDArray[np.float32], rows: int) -> Self:
        """
        Args:
            sums: 1 on average on the diagonal, and damped; changed meanwhile.
            rows: how many there were.

        Raises:
            LinAlgError: the sums are not positive definite.
        """
        k = len(sums)
        kept, diagonal = sums.diagonal().copy(), np.arange(k)
        sums[diagonal, diagonal] += np.float32(DAMPING * max(1.0, ROWS_PER_INPUT * k / max(1, rows)))
        try:
            return cls(factor(sums), cross)
        finally:
            sums[diagonal, diagonal] = kept

    def __matmul__(self, w: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):  # `making_up` looks at what comes of it
            return solve(self.lower, self.cross @ w)


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

"""Shared by the algorithms that solve with Gram matrices: factors of matrices so large that few copies of them fit.

Both go through blocks, so that almost all is done by products of matrices, and nothing but the result is as large as
the matrix. LAPACK, as numpy calls it, makes four copies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Rows and columns that are gone through at once.
BLOCK = 256


def factor(matrix: NDArray[np.float32], order: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
    """The lower triangle that times its transpose is the matrix, found in float64.

    Args:
        order: of the matrix's rows and columns; None: as they are.

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    k = len(matrix)
    numbers = np.empty(k * k, np.float64)
    lower = numbers.reshape(k, k)
    for start in range(0, k, BLOCK):
        rows = slice(start, min(k, start + BLOCK))
        lower[rows] = matrix[rows] if order is None else matrix[order[rows]][:, order]
    for start in range(0, k, BLOCK):
        here, end = slice(start, min(k, start + BLOCK)), min(k, start + BLOCK)
        lower[here, here] = np.linalg.cholesky(lower[here, here])
        lower[here, end:] = 0
        inverse = np.linalg.inv(lower[here, here]).T
        for low in range(end, k, BLOCK):
            lower[low : low + BLOCK, here] = lower[low : low + BLOCK, here] @ inverse
        for low in range(end, k, BLOCK):
            high = min(k, low + BLOCK)
            lower[low:high, end:high] -= lower[low:high, here] @ lower[end:high, here].T
    del lower
    return _shortened(numbers).reshape(k, k)


def _shortened(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """The same as float32, in the first half of their own memory; the other half is given back."""
    count, short = numbers.size, numbers.view(np.float32)[: numbers.size]
    for start in range(0, count, BLOCK * BLOCK):
        part = slice(start, start + BLOCK * BLOCK)
        short[part] = numbers[part].astype(np.float32)  # a copy, as it is written over
    del short
    numbers.resize((count + 1) // 2, refcheck=False)  # nothing else looks at them
    return numbers.view(np.float32)[:count]


def solve(lower: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """x with lower · lowerᵀ · x = b [K, N]."""
    k, x = len(lower), b.astype(np.float32)
    for start in range(0, k, BLOCK):
        here, end = slice(start, min(k, start + BLOCK)), min(k, start + BLOCK)
        x[here] = np.linalg.solve(lower[here, here], x[here])
        x[end:] -= lower[end:, here] @ x[here]
    for start in reversed(range(0, k, BLOCK)):
        here = slice(start, min(k, start + BLOCK))
        x[here] = np.linalg.solve(lower[here, here].T, x[here])
        x[:start] -= lower[here, :start].T @ x[here]
    return x

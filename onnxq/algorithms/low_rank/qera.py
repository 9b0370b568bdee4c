"""qera: the two matrices that leave the least of the error at the layer's outputs on the data.

With H = Σ xᵀ·x = L·Lᵀ, what an error E makes of the outputs is |Lᵀ·E|². So of all matrices of a rank, L⁻ᵀ times the one
nearest to Lᵀ·E is best. In the place of L any root of H gives the same; that of Cholesky is the quickest to find.

Source: Zhang et al., QERA: an Analytical Framework for Quantization Error Reconstruction (ICLR 2025), its exact
solution (theorem 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.low_rank._factors import Factors, leading
from onnxq.algorithms.low_rank.lqer import factors as without_data
from onnxq.formats import FloatArray

#: Part of the mean square of all inputs that is added to each one's.
DAMPING = 0.01


def factors(error: FloatArray, rank: int, gram: NDArray[np.float32]) -> Factors:
    """`a` and `b` of which a · b is nearest to `error` [K, N] on inputs of this Gram matrix [K, K].

    Where that is of no numbers to solve with, those of the weight alone.
    """
    h = gram.astype(np.float64)
    mean = np.trace(h) / max(1, len(h))
    if not np.isfinite(h).all() or mean <= 0:
        return without_data(error, rank)
    h = h / mean + DAMPING * np.eye(len(h))
    try:
        lower = np.linalg.cholesky(h)
    except np.linalg.LinAlgError:  # sums of float32 numbers, not positive definite
        return without_data(error, rank)
    u, b = leading(lower.T @ error.astype(np.float64), rank)
    a = np.linalg.solve(lower.T, u)
    return Factors(a.astype(np.float32), b.astype(np.float32)).evened()

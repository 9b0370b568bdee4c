"""lqer: the two matrices nearest to the error of the weight itself, which needs no data.

Source: Zhang et al., LQER: Low-Rank Quantization Error Reconstruction for LLMs (ICML 2024), without its scales;
first in Yao et al., ZeroQuant-V2 (2023).
"""

from __future__ import annotations

import numpy as np

from onnxq.algorithms.low_rank._factors import Factors, leading
from onnxq.formats import FloatArray


def factors(error: FloatArray, rank: int) -> Factors:
    """`a` and `b` with a · b nearest to `error` [K, N]."""
    a, b = leading(error.astype(np.float64), rank)
    return Factors(a.astype(np.float32), b.astype(np.float32)).evened()

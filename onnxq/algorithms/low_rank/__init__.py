"""What codes leave of a weight, as a product of two thin matrices that is computed beside it: one way a file.

Each defines `factors(error, rank, …)`: `a` [K, rank] and `b` [rank, N] with a · b near `error` [K, N]; which nearness
is meant is what tells them apart.
"""

from __future__ import annotations

import numpy as np

from onnxq.algorithms import gptq
from onnxq.algorithms.low_rank import lqer, qera
from onnxq.algorithms.low_rank._factors import Factors
from onnxq.formats import FloatArray
from onnxq.summaries.evidence import Layer

__all__ = ["Factors", "lqer", "qera", "reconstruction"]


def reconstruction(w: FloatArray, q: FloatArray, rank: int, layer: Layer | None = None) -> Factors:
    """The best `Factors` to add to `q` in the place of `w`, both [K, N], as float16 holds them.

    Args:
        layer: what data say of its input; None: what is nearest to the error of the weight.
    """
    plain = lqer.factors(w - q, rank)
    if layer is None or layer.groups != 1:
        return _in_half(plain)
    wanted = gptq.wanted(w, layer)
    by_data = qera.factors(wanted - q, rank, layer.gram().sums[0])
    rows, in_float = (x[:, 0] for x in layer.held_back())
    with np.errstate(over="ignore", invalid="ignore"):
        left = in_float @ w - rows @ q
        errors = [float(np.square(left - (rows @ each.a) @ each.b).sum(dtype=np.float64)) for each in (by_data, plain)]
    return _in_half(plain if errors[1] < errors[0] else by_data)


def _in_half(factors: Factors) -> Factors:
    limit = float(np.finfo(np.float16).max)
    return Factors(*(np.clip(x, -limit, limit).astype(np.float16).astype(np.float32) for x in factors))

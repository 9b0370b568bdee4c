"""Which ε BatchNorms had that an exporter folded into kernels: once for all of a model, since nobody mixes them.

A kernel tells the scale of each channel, hence u = (γ / scale)² = a · var + ε, where training on since the export has
moved each channel by a few percent, and all of them by a. Where variances differ from channel to channel, or have not
moved at all (a = 1), one ε explains u better than the other: by how much is the logarithm of the odds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: What is added to a variance: of torch, and of what came from TensorFlow or YOLO, which is rarer.
EPSILONS = (1e-5, 1e-3)
#: Odds of a thousand to one are a decision.
DECIDED = float(np.log(1000))
#: Of float32, and of the logarithm of a, whose standard deviation the latter is.
_ROUNDING, _DRIFT = 1e-6, 0.3
#: What differs by less was not trained on: a is 1 then.
_UNMOVED = 1e-5
#: Channels that tell something about an ε and a drift.
_LEAST = 3
Vector = NDArray[np.float64]


def decide(channels: Sequence[tuple[Vector, Vector]]) -> tuple[float, bool]:
    """(the ε that explains more, whether the other one is out of the question); torch's own where nothing tells it.

    Args:
        channels: (u, var) of each kernel, where both are numbers above 0.
    """
    told = {epsilon: sum((_evidence(u, var, epsilon) for u, var in channels), 0.0) for epsilon in EPSILONS}
    usual, other = EPSILONS
    lead = told[other] - told[usual]
    return (other if lead >= DECIDED else usual), abs(lead) >= DECIDED


def _evidence(u: Vector, var: Vector, epsilon: float) -> float:
    """The logarithm of how likely u is."""
    if u.size < _LEAST:
        return 0.0

    def spread(drift: float) -> float:
        return float(np.square(np.log(u) - np.log(drift * var + epsilon)).mean()) + _ROUNDING**2

    drifts = np.exp(np.linspace(-3 * _DRIFT, 3 * _DRIFT, 61))
    for _ in range(6):  # the grid is narrowed around its best point
        best = min(drifts, key=spread)
        step = np.log(drifts[1] / drifts[0])
        drifts = best * np.exp(np.linspace(-step, step, 21))
    variance = spread(min(drifts, key=spread))
    free = -u.size / 2 * np.log(variance) - np.log(_DRIFT / np.sqrt(variance / u.size))
    still = spread(1.0)
    return float(max(free, -u.size / 2 * np.log(still)) if still < _UNMOVED**2 else free)

"""By which factors channels between two layers are scaled, so that few bits serve both: one way a file.

Each defines `factors(sizes, strength)`, of what is known of the channels of an activation and of the weights behind
it, and the `STRENGTHS` that are worth trying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.channels import awq, smoothquant
from onnxq.algorithms.channels._sizes import ChannelSizes

#: By file name.
CHANNEL_WAYS: Mapping[str, tuple[Callable[[ChannelSizes, float], NDArray[np.float32]], Sequence[float]]] = {
    "smoothquant": (smoothquant.factors, smoothquant.STRENGTHS),
    "awq": (awq.factors, awq.STRENGTHS),
}

WORDS = tuple(CHANNEL_WAYS)

__all__ = ["CHANNEL_WAYS", "WORDS", "ChannelSizes"]

"""awq: the weights of channels in which the activation is large are made larger, so that rounding harms them less.

Source: Lin et al., AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration (MLSys 2024),
section 3.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.channels._sizes import ChannelSizes, centred

#: Powers of the activation's mean magnitude that are tried.
STRENGTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def factors(sizes: ChannelSizes, strength: float) -> NDArray[np.float32]:
    """[channels], by which weights are multiplied and the activation is divided."""
    return centred(sizes.mean**strength)

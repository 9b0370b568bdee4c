"""smoothquant: part of what makes channels of an activation large is handed on to the weights behind it.

With one scale for all channels of an activation, a few large ones leave the others few of the 256 codes; weights have
a scale for each output, and bear channels of different sizes better.

Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models (ICML
2023), equation 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.channels._sizes import ChannelSizes, centred

#: What part of the differences between channels of the activation the weights take.
STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def factors(sizes: ChannelSizes, strength: float) -> NDArray[np.float32]:
    """[channels], by which weights are multiplied and the activation is divided."""
    return centred(sizes.largest**strength / np.maximum(sizes.weights, 1e-12) ** (1 - strength))

"""nf4_dq_bnb: nf4 with its scales quantized once more to 8 bits, by the dynamic map of bitsandbytes.

Source: see `kinds/nested.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import nf4
from onnxq.formats.kinds.double import Double


class nf4_dq_bnb(Double):
    """Codes as of nf4; `nf4_dq_bnb512` has a factor for 512 scales."""

    base = nf4.nf4()
    nested_type = np.dtype(np.uint8)

"""int8_dq: int8 with its scales quantized once more to 8 bits, by the linear int8 codes of torchao.

Source: see `kinds/nested.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import int8
from onnxq.formats.kinds.double import Double


class int8_dq(Double):
    """Codes as of int8; `int8_dq512` has a factor for 512 scales."""

    base = int8.int8()
    nested_type = np.dtype(np.int8)

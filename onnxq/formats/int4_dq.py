"""int4_dq: int4 with its scales quantized once more to 8 bits, by the linear int8 codes of torchao.

Source: see `kinds/nested.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import int4
from onnxq.formats.kinds.double import Double


class int4_dq(Double):
    """Codes as of int4; `int4_dq512` has a factor for 512 scales."""

    base = int4.int4()
    nested_type = np.dtype(np.int8)

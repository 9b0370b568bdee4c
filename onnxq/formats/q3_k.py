"""q3_k: GGUF super blocks of 256: 3-bit integers, 16 blocks of 16.

Source: ggml's block_q3_K, in Python in gguf's quants.py; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats.kinds.super_blocks import Short, Signed, SuperBlocks


class q3_k(SuperBlocks):
    """Codes -4…3 times a scale of 6 bits and of either sign, with a float16 factor."""

    name = "q3_k"
    bits = 3
    code_type = np.dtype(np.int8)
    default_block: int | None = 16
    base = Signed("q3_k", 3)
    stored_scales = Short("q3_k", 6, signed=True)
    super_block = 16
    gguf = "Q3_K"

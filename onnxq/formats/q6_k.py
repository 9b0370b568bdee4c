"""q6_k: GGUF super blocks of 256: 6-bit integers, 16 blocks of 16.

Source: ggml's block_q6_K, in Python in gguf's quants.py; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats.kinds.super_blocks import Short, Signed, SuperBlocks


class q6_k(SuperBlocks):
    """Codes -32…31 times a scale of 8 bits and of either sign, with a float16 factor."""

    name = "q6_k"
    bits = 6
    code_type = np.dtype(np.int8)
    default_block: int | None = 16
    base = Signed("q6_k", 6)
    stored_scales = Short("q6_k", 8, signed=True)
    super_block = 16
    gguf = "Q6_K"

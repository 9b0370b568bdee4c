"""q2_k: GGUF super blocks of 256: 2-bit steps above a minimum, 16 blocks of 16.

Source: ggml's block_q2_K, in Python in gguf's quants.py; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats.kinds.super_blocks import Short, Spread, SuperBlocks


class q2_k(SuperBlocks):
    """Codes 0…3 times a scale of 4 bits, less a minimum of 4 bits; a float16 factor for each of both."""

    name = "q2_k"
    bits = 2
    code_type = np.dtype(np.uint8)
    offset_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 16
    base = Spread("q2_k", 2)
    stored_scales = Short("q2_k", 4)
    stored_minima = Short("q2_k", 4)
    super_block = 16
    gguf = "Q2_K"

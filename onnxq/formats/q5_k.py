"""q5_k: GGUF super blocks of 256: 5-bit steps above a minimum, 8 blocks of 32.

Source: ggml's block_q5_K, in Python in gguf's quants.py; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats.kinds.super_blocks import Short, Spread, SuperBlocks


class q5_k(SuperBlocks):
    """Codes 0…31 times a scale of 6 bits, less a minimum of 6 bits; a float16 factor for each of both."""

    name = "q5_k"
    bits = 5
    code_type = np.dtype(np.uint8)
    offset_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 32
    base = Spread("q5_k", 5)
    stored_scales = Short("q5_k", 6)
    stored_minima = Short("q5_k", 6)
    super_block = 8
    gguf = "Q5_K"

"""q4_k: GGUF super blocks of 256: 4-bit steps above a minimum, 8 blocks of 32.

Source: ggml's block_q4_K, in Python in gguf's quants.py; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats.kinds.super_blocks import Short, Spread, SuperBlocks


class q4_k(SuperBlocks):
    """Codes 0…15 times a scale of 6 bits, less a minimum of 6 bits; a float16 factor for each of both."""

    name = "q4_k"
    bits = 4
    code_type = np.dtype(np.uint8)
    offset_type: np.dtype | None = np.dtype(np.float32)
    default_block: int | None = 32
    base = Spread("q4_k", 4)
    stored_scales = Short("q4_k", 6)
    stored_minima = Short("q4_k", 6)
    super_block = 8
    gguf = "Q4_K"

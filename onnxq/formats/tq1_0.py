"""tq1_0: GGUF blocks of 256 ternary weights, five to a byte in its files; in all others as tq2_0.

Source: ggml's block_tq1_0, in Python in gguf's quants.py.
"""

from __future__ import annotations

from onnxq.formats import tq2_0


class tq1_0(tq2_0.tq2_0):
    """Codes -1, 0 and 1 times a float16 scale, which is the largest magnitude."""

    name = "tq1_0"
    gguf: str | None = "TQ1_0"

"""nvfp4: 4-bit floating point E2M1 with an E4M3 scale for 16 weights, and one float32 factor for the whole weight.

Source: Abecassis et al., Pretraining Large Language Models with NVFP4 (2025), section 2; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

from onnxq.formats import e2m1, float8_e4m3
from onnxq.formats.kinds.super_blocks import SuperBlocks


class nvfp4(SuperBlocks):
    """Codes 0…15 index mxfp4's `LEVELS`; the factor puts the largest scale on 448, the largest number of E4M3."""

    name = "nvfp4"
    base = e2m1.e2m1()
    bits, code_type = base.bits, base.code_type
    default_block: int | None = base.default_block
    levels, tables, kernel = base.levels, base.tables, base.kernel
    stored_scales = float8_e4m3.float8_e4m3()

"""nvfp4: 4-bit floating point E2M1 with an E4M3 scale for 16 weights, and one float32 factor for the whole weight.

Source: Abecassis et al., Pretraining Large Language Models with NVFP4 (2025), section 2; see `kinds/super_blocks.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import FloatArray, Granularity, ScaleArray, e2m1, float8_e4m3
from onnxq.formats.kinds.super_blocks import SuperBlocks


class nvfp4(SuperBlocks):
    """Codes 0…15 index mxfp4's `LEVELS`; the factor is the least power of two by which no scale is above 448, the
    largest number of E4M3. Any factor would do: by this one scales have four bits, so that readers which make float16
    or bfloat16 of them, or divide by the inverse of the factor, have the same numbers, and E4M3 loses no bit by it.
    """

    name = "nvfp4"
    base = e2m1.e2m1()
    bits, code_type = base.bits, base.code_type
    default_block: int | None = base.default_block
    levels, tables, kernel = base.levels, base.tables, base.kernel
    stored_scales = float8_e4m3.float8_e4m3()

    def factors(self, scales: ScaleArray, shared: Granularity) -> FloatArray | None:
        least, _ = self.stored_scales.fit(np.asarray(scales, np.float32), shared)
        assert least is not None
        mantissas, exponents = np.frexp(np.asarray(least, np.float32))
        power = np.ldexp(np.float32(1), exponents - (mantissas == 0.5)).astype(np.float32)
        with np.errstate(over="ignore"):  # of the largest numbers, whose scales might be rounded up
            is_finite = np.isfinite(power * np.float32(448 * self.levels.max()))
        return np.where(is_finite, power, least)

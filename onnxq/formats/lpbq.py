"""lpbq: low power block quantization of Qualcomm's processors: int4 in blocks whose scales are 4-bit integers.

Scales of a channel are 1…15 times one float, so that a kernel widens codes to 8 bits of that float (-120…105), and sums
up a channel in integers.

Source: AIMET's documentation (Blockwise quantization, LPBQ); onnxruntime's QNN provider, `lpbqmatmul_fusion.cc`, which
gives the processor 4 bits for each scale (`blockScaleBitwidth`).
"""

from __future__ import annotations

import numpy as np

from onnxq.formats import FloatArray, Granularity
from onnxq.formats.kinds import affine
from onnxq.formats.kinds.super_blocks import OFF, Short, SuperBlocks, least_squares


class Positive(Short):
    """Codes -8…7 times a scale above zero, of least squares: the wish."""

    scale_type: np.dtype | None = np.dtype(np.float32)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        lowest, highest = np.float32(self.lowest), np.float32(self.highest)
        return least_squares(w, granularity, lowest, highest, np.float32(7.5) + OFF, signed=False), None


class Steps(Short):
    """Scales as codes 1…15 times a float32: none is nothing, as the processor divides by them."""

    scale_type: np.dtype | None = np.dtype(np.float32)

    def __init__(self, name: str, bits: int) -> None:
        super().__init__(name, bits)
        self.lowest = 1

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        groups, axes = granularity.groups(w)
        largest = np.max(groups, axis=axes, initial=0).astype(np.float32)
        return affine.usable_scale(largest.astype(np.float64) / self.highest, self.highest), None


class lpbq(SuperBlocks):
    """Codes -8…7 times a scale of 4 bits, which is 1 to 15 times the float32 factor of all of a channel."""

    name = "lpbq"
    bits = 4
    code_type = np.dtype(np.int8)
    has_fixed_block = False
    default_block: int | None = 64
    base = Positive("lpbq", 4, signed=True)
    stored_scales = Steps("lpbq", 4)
    super_block = 1 << 30  # all blocks of a row

"""Shared by the formats of double quantization: those of another format, whose scales are stored in 8 bits."""

from __future__ import annotations

import copy

from onnxq.formats import Again, CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import nested


class Double(Format):
    """Codes as of `base`, chosen for its exact scales; the scales are what is left of them in 8 bits.

    Its word may end in how many scales share a factor: `nf4_dq512`; alone it is 256.
    """

    parameters = range(1, 65537)
    parameter = "scales a factor"
    base: Format

    def __init__(self, block: int | None = None) -> None:
        self.name = type(self).__name__ + ("" if block is None else str(block))
        self.nested_block = nested.SUPER_BLOCK if block is None else block
        self._take_after(self.base)

    def over(self, base: Format, name: str) -> Double:
        """The same over another format."""
        other = copy.copy(self)
        other.name = name
        other._take_after(base)
        return other

    def _take_after(self, base: Format) -> None:
        self.base, self.bits, self.code_type = base, base.bits, base.code_type
        self.scale_type, self.default_block = base.scale_type, base.default_block
        self.levels, self.tables, self.kernel = base.levels, base.tables, base.kernel

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray | None, CodeArray | None]:
        return self.base.fit(w, granularity)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        return self.nest(self.base.encode(w, granularity, scales, zero_points))

    def nest(self, q: QuantizedTensor, again: Again | None = None) -> QuantizedTensor:
        """The weight `q` of `base` with all its scales quantized; codes stay as they are, as the peers' do."""
        return nested.nested(self, q)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return self.base.decode(q)

"""Shared by the formats of two levels: a few blocks, a super block, have one factor, and their scales, and minima if
there are any, are short numbers times that factor.

Codes are chosen for the scales as they are stored. Which scales are wanted is the `base` format's affair, whose scales
are of float32.

Source: ggml's block_q2_K … block_q6_K, in Python in gguf's quants.py, whose decoding this is to the bit; the choice of
scales is by least squares, as in ggml, but over plain errors. NVFP4: Abecassis et al., Pretraining Large Language
Models with NVFP4 (2025), section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Again, CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import affine, arguments, fast, gguf

#: Steps tried for each block, as parts of a code by which the outermost weight may lie off the outermost code.
OFF = np.linspace(-1, 1, 9, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class StoredScales:
    """Scales and minima of a weight, as weights of their own.

    Attributes:
        scales, minima: of the shape of the weight's scales, decoding to them; `minima` of formats that have any.
    """

    scales: QuantizedTensor
    minima: QuantizedTensor | None = None

    @property
    def nbytes(self) -> int:
        return self.scales.nbytes + (0 if self.minima is None else self.minima.nbytes)

    @property
    def holds_minima(self) -> bool:
        return self.minima is not None

    @property
    def values(self) -> tuple[FloatArray, FloatArray | None]:
        """The scales and minima themselves."""
        return self.scales.dequantize(), None if self.minima is None else self.minima.dequantize()


class Short(Format):
    """Numbers of the sign of their group's factor, or of either, as codes times a float16 factor: what scales become.

    Args:
        name: of the format that stores them.
        bits: of a code; signed ones go from -2^(bits − 1), where the largest magnitude comes to lie.
    """

    scale_type: np.dtype | None = np.dtype(np.float16)

    def __init__(self, name: str, bits: int, *, signed: bool = False) -> None:
        self.name, self.bits, self.code_type = name, bits, np.dtype(np.int8 if signed else np.uint8)
        self.lowest = -(1 << (bits - 1)) if signed else 0
        self.highest = self.lowest + (1 << bits) - 1

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        groups, axes = granularity.groups(w)
        low, high = (f(groups, axis=axes, initial=0).astype(np.float32) for f in (np.min, np.max))
        return np.where(-low > high, low, high) / np.float32(self.lowest or self.highest), None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        if scales is None:
            scales, _ = self.fit(w, granularity)
        kept = fast.stored(self, scales)
        steps = np.rint(w * granularity.spread(gguf.reciprocal(kept.astype(np.float32)), w.shape))
        codes = np.clip(steps, self.lowest, self.highest).astype(self.code_type)
        return QuantizedTensor(self, granularity, codes, kept)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return affine.decode(q)


class Signed(Short):
    """The same of either sign, times a float32 scale of least squares: the wish of formats without minima."""

    scale_type: np.dtype | None = np.dtype(np.float32)

    def __init__(self, name: str, bits: int) -> None:
        super().__init__(name, bits, signed=True)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        lowest = np.float32(-(1 << (self.bits - 1)))
        return least_squares(w, granularity, lowest, -lowest - 1, lowest - OFF, signed=True), None


class Spread(Format):
    """Codes 0 … 2^bits − 1 times a scale, plus a minimum of at most zero: the wish of formats with minima."""

    scale_type: np.dtype | None = np.dtype(np.float32)
    offset_type: np.dtype | None = np.dtype(np.float32)

    def __init__(self, name: str, bits: int) -> None:
        self.name, self.bits, self.code_type = name, bits, np.dtype(np.uint8)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, FloatArray]:
        x, unit = _scaled_groups(w, granularity, "edge")
        qmax, n = np.float32((1 << self.bits) - 1), x.shape[-1]
        low, high = x.min(axis=-1, initial=0), x.max(axis=-1, initial=-1)
        scale, minimum = (high - low) / qmax, low
        least = np.full(low.shape, np.inf, np.float32)
        inverse, total = gguf.reciprocal(high - low), x.sum(axis=-1)
        for off in OFF:
            codes = np.clip(np.rint((x - low[..., None]) * (inverse * (qmax + off))[..., None]), 0, qmax)
            sums, squares, products = codes.sum(axis=-1), (codes * codes).sum(axis=-1), (x * codes).sum(axis=-1)
            # The line through (code, weight) with the least squares, and the one through zero where that is above it.
            width = n * squares - sums * sums
            slope = _quotient(n * products - sums * total, width)
            start = _quotient(squares * total - sums * products, width)
            slope = np.where(start > 0, _quotient(products, squares), slope)
            start = np.minimum(start, 0)
            error = np.square(codes * slope[..., None] + start[..., None] - x).sum(axis=-1)
            better = (error < least) & (slope > 0)
            scale, minimum = np.where(better, slope, scale), np.where(better, start, minimum)
            least = np.where(better, error, least)
        return (scale * unit).astype(np.float32), (minimum * unit).astype(np.float32)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        if scales is None or zero_points is None:
            scales, zero_points = self.fit(w, granularity)
        # In float64: the width of a range can overflow float32.
        steps = w - granularity.spread(zero_points.astype(np.float64), w.shape)
        steps *= granularity.spread(gguf.reciprocal(scales.astype(np.float32)).astype(np.float64), w.shape)
        codes = np.clip(np.rint(steps), 0, (1 << self.bits) - 1).astype(np.uint8)
        return QuantizedTensor(self, granularity, codes, scales, zero_points)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return gguf.decode_minimum(q)


class SuperBlocks(Format):
    """What a file of such a format defines: the facts of `Format`, with `base` and the way its scales are stored."""

    scale_type: np.dtype | None = np.dtype(np.float32)
    has_fixed_block = True
    base: Format
    stored_scales: Format

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray | None, NDArray | None]:
        return self.base.fit(w, granularity)

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        wish = self.base.encode(w, granularity, scales, zero_points)
        return self.nest(wish, lambda s, z: self.base.encode(w, granularity, s, z))

    def nest(self, q: QuantizedTensor, again: Again | None = None) -> QuantizedTensor:
        shared = sharing(self, q.granularity)
        scales = arguments.present(q.scales, "scales")
        stored = StoredScales(self.stored_scales.encode(scales, shared, self.factors(scales, shared)))
        if self.stored_minima is not None:
            minima = arguments.present(q.zero_points, "minima")
            stored = StoredScales(stored.scales, self.stored_minima.encode(minima, shared))
        kept = stored.values
        codes = (q if again is None else again(*kept)).codes
        return QuantizedTensor(self, q.granularity, codes, *kept, stored)

    def factors(self, scales: ScaleArray, shared: Granularity) -> FloatArray | None:
        """What the codes of the scales are multiplied by; None: what their own format fits."""
        return None

    def decode(self, q: QuantizedTensor) -> FloatArray:
        return self.base.decode(q)


def least_squares(
    w: FloatArray,
    granularity: Granularity,
    lowest: np.float32,
    highest: np.float32,
    ends: FloatArray,
    *,
    signed: bool,
) -> FloatArray:
    """The scales for codes from `lowest` to `highest` that have the smallest squared errors, of those that are tried.

    Args:
        ends: where the largest magnitude of a block is tried to come to lie; where all fail it is in the middle one.
        signed: whether scales may have the sign of that weight; else they are above zero.
    """
    x, unit = _scaled_groups(w, granularity, "constant")
    low, high = x.min(axis=-1, initial=0), x.max(axis=-1, initial=0)
    extreme = np.where(-low >= high, low, high) if signed else np.maximum(-low, high)
    best, most = extreme / ends[len(ends) // 2], np.full(extreme.shape, -1, np.float32)
    inverse = gguf.reciprocal(extreme)
    for end in ends:
        codes = np.clip(np.rint(x * (inverse * end)[..., None]), lowest, highest)
        product, square = (x * codes).sum(axis=-1), (codes * codes).sum(axis=-1)
        gain = _quotient(product * product, square)
        better = gain > most
        best = np.where(better & (square > 0), _quotient(product, square), best)
        most = np.where(better, gain, most)
    return (best * unit).astype(np.float32)


def sharing(format: Format, granularity: Granularity) -> Granularity:
    """Which scales of a weight in a format of two levels have one factor; without blocks each one its own."""
    if format.super_block is None or granularity.axis is None:
        return Granularity()
    if granularity.block is None:
        return Granularity(0)
    return Granularity(granularity.axis, format.super_block)


def _scaled_groups(
    w: FloatArray, granularity: Granularity, fill: Literal["constant", "edge"]
) -> tuple[FloatArray, FloatArray]:
    """([…, n] each group's weights over its largest magnitude, that)."""
    groups, axes = granularity.groups(w, fill)
    last = np.moveaxis(groups, axes, range(groups.ndim - len(axes), groups.ndim))
    shape = last.shape[: groups.ndim - len(axes)]
    x = last.reshape(*shape, math.prod(last.shape[len(shape) :]))
    unit = np.max(np.abs(x), axis=-1, initial=0)
    unit = np.where(unit < affine.TINY, np.float32(1), unit).astype(np.float32)
    # In order in memory, so that sums do not depend on how the weight was cut.
    return np.ascontiguousarray(x / unit[..., None], np.float32), unit


def _quotient(x: FloatArray, y: FloatArray) -> FloatArray:
    """x / y; 0 where y is."""
    return np.where(y > 0, x / np.where(y > 0, y, np.float32(1)), np.float32(0)).astype(np.float32)

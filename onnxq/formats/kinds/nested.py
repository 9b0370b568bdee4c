"""Shared by the formats whose scales are quantized once more: double quantization.

The mean of all scales is subtracted, and what remains is coded in 8 bits with one factor for each 256 scales. Scales
are counted by rows (the blocked axis last, then the blocks of a row), through the whole weight.

Source: Dettmers et al., QLoRA (2023), section 3; torchao's `NF4Tensor` (linear codes) and bitsandbytes'
`quantize_blockwise` (codes of a dynamic map, Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from onnxq.formats.kinds import arguments

if TYPE_CHECKING:
    from onnxq.formats import Format, Granularity, QuantizedTensor

#: Scales that share a factor.
SUPER_BLOCK = 256


@dataclass(frozen=True, eq=False)
class NestedScales:
    """Scales in 8 bits.

    Attributes:
        codes: [scales], int8 (linear) or uint8 (of the dynamic map), one for each scale, counted by rows.
        factors: [ceil(scales / 256)] float32. Linear: the codes are divided by it; dynamic map: multiplied.
        offset: the mean that was subtracted, float32.

    Raises:
        ValueError: arrays of other types or sizes.
    """

    codes: NDArray[np.generic]
    factors: NDArray[np.float32]
    offset: np.float32

    def __post_init__(self) -> None:
        if self.codes.dtype not in (np.int8, np.uint8):
            raise ValueError(f"nested scales have codes of int8 or uint8, not {self.codes.dtype}")
        arguments.require_shape("codes of nested scales", self.codes, (self.codes.size,))
        arguments.require_shape("factors of nested scales", self.factors, (-(-self.codes.size // SUPER_BLOCK),))

    def dequantize(self) -> NDArray[np.float32]:
        """[scales] float32. Of a scale near zero rounding may leave less than zero, in both peers as here."""
        factors = np.repeat(self.factors, SUPER_BLOCK)[: self.codes.size]
        if self.codes.dtype == np.int8:
            return self.codes.astype(np.float32) / factors + self.offset
        return dynamic_map()[self.codes.astype(np.intp)] * factors + self.offset

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.factors.nbytes + 4

    @property
    def error(self) -> NDArray[np.float64]:
        """[scales] the most by which rounding may have moved each scale."""
        factors = np.repeat(self.factors.astype(np.float64), SUPER_BLOCK)[: self.codes.size]
        if self.codes.dtype == np.int8:
            return np.where(self.codes == 127, 1.0, 0.5) / factors  # +128 is clipped
        gaps = np.diff(dynamic_map().astype(np.float64), prepend=-1.0)
        widest = np.maximum(gaps, np.append(gaps[1:], 0.0))
        return widest[self.codes.astype(np.intp)] / 2 * factors


def nest_linear(scales: NDArray[np.float32]) -> NestedScales:
    """The torchao variant of [scales]: int8 codes round(c · f), f = 128 / max|c| of each 256.

    Where all of 256 scales are equal there is nothing left to code and f is 1.
    """
    offset = _mean(scales)
    rest = scales - offset
    largest = _largest(rest)
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.float32(256) / (2 * largest)
    factors = np.where(np.isfinite(factors), factors, np.float32(1)).astype(np.float32)
    codes = np.rint(rest * np.repeat(factors, SUPER_BLOCK)[: rest.size])
    return NestedScales(np.clip(codes, -128, 127).astype(np.int8), factors, offset)


def nest_dynamic(scales: NDArray[np.float32]) -> NestedScales:
    """The bitsandbytes variant of [scales]: the nearest entry of the dynamic map times max|c| of each 256."""
    offset = _mean(scales)
    rest = scales - offset
    largest = _largest(rest)
    divisor = np.where(largest < np.finfo(np.float32).tiny, np.float32(1), largest)
    table = dynamic_map()
    middles = (table[1:] + table[:-1]) / np.float32(2)
    codes = np.searchsorted(middles, rest / np.repeat(divisor, SUPER_BLOCK)[: rest.size], side="left")
    return NestedScales(codes.astype(np.uint8), largest, offset)


@functools.cache
def dynamic_map() -> NDArray[np.float32]:
    """[256] float32, ascending: for each power of ten from 1e-6 to 1 twice as many fractions as for the one before.

    The arithmetic is that of the peer (a fused multiply-add in single precision), so that every entry is the same.
    """
    entries = [0.0, 1.0]
    for exponent in range(7):
        count = 2**exponent
        low, high = float(np.float32(0.1)), 1.0
        step = float((np.float32(high) - np.float32(low)) / np.float32(count))
        bounds = [
            np.float32(low + step * i) if i < (count + 1) // 2 else np.float32(high - step * (count - i))
            for i in range(count + 1)
        ]
        for a, b in itertools.pairwise(bounds):
            middle = (a + b) / np.float32(2) * np.float32(10.0 ** (exponent - 6))
            entries += [float(middle), -float(middle)]
    table = np.sort(np.array(entries, np.float32))
    table.flags.writeable = False
    return table


def _mean(scales: NDArray[np.float32]) -> np.float32:
    """Summed up in float64, so that the order hardly ever shows in float32."""
    return np.float32(np.sum(scales, dtype=np.float64) / scales.size) if scales.size else np.float32(0)


def _largest(rest: NDArray[np.float32]) -> NDArray[np.float32]:
    """[ceil(scales / 256)] largest magnitude of each super-block."""
    padded = np.pad(np.abs(rest), (0, -rest.size % SUPER_BLOCK))
    return padded.reshape(-1, SUPER_BLOCK).max(axis=1, initial=0).astype(np.float32)


def nested(format: Format, q: QuantizedTensor, nest: Callable[[NDArray[np.float32]], NestedScales]) -> QuantizedTensor:
    """`q` as a weight of `format`, its scales replaced by what `nest` leaves of them."""
    granularity, scales = q.granularity, arguments.present(q.scales, "scales")
    made = nest(_by_row(granularity, scales.astype(np.float32, copy=False)).reshape(-1))
    return replace(q, format=format, scales=unnest(made, granularity, q.shape), nested=made)


def unnest(made: NestedScales, granularity: Granularity, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The scales of a weight of `shape`, in the shape that its `granularity` gives them."""
    scale_shape = granularity.scale_shape(shape)
    arguments.require_size("codes of nested scales", made.codes, math.prod(scale_shape))
    axis = granularity.within(len(shape)).axis
    if axis is None or granularity.block is None:
        return made.dequantize().reshape(scale_shape)
    others = [size for i, size in enumerate(scale_shape) if i != axis]
    return np.ascontiguousarray(np.moveaxis(made.dequantize().reshape(*others, scale_shape[axis]), -1, axis))


def _by_row(granularity: Granularity, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    if granularity.axis is None or granularity.block is None:
        return scales
    return np.moveaxis(scales, granularity.axis, -1)

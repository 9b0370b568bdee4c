"""Shared by the formats whose scales are quantized once more: double quantization.

The mean of all scales is subtracted, and what remains is coded in 8 bits with one factor for each 256 scales, or as
many as are asked for (torchao's `scaler_block_size`). Scales are counted by rows (the blocked axis last, then the
blocks of a row), through the whole weight.

Source: Dettmers et al., QLoRA (2023), section 3; torchao's `NF4Tensor` (linear codes) and bitsandbytes'
`quantize_blockwise` (codes of a dynamic map, Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.formats.kinds import arguments
from onnxq.formats.kinds.maps import dynamic_map

if TYPE_CHECKING:
    from onnxq.formats import Format, Granularity, QuantizedTensor

#: Scales that share a factor.
SUPER_BLOCK = 256


@dataclass(frozen=True, eq=False)
class NestedScales:
    """Scales in 8 bits.

    Attributes:
        codes: [scales], int8 (linear) or uint8 (of the dynamic map), one for each scale, counted by rows.
        factors: [ceil(scales / block)] float32. Linear: the codes are divided by it; dynamic map: multiplied.
        offset: the mean that was subtracted, float32.
        block: scales that share a factor.

    Raises:
        ValueError: arrays of other types or sizes.
    """

    codes: NDArray[np.generic]
    factors: NDArray[np.float32]
    offset: np.float32
    block: int = SUPER_BLOCK

    def __post_init__(self) -> None:
        if self.codes.dtype not in (np.int8, np.uint8):
            raise ValueError(f"nested scales have codes of int8 or uint8, not {self.codes.dtype}")
        arguments.require_shape("codes of nested scales", self.codes, (self.codes.size,))
        block = _require_block(self.block)
        arguments.require_shape("factors of nested scales", self.factors, (-(-self.codes.size // block),))

    def dequantize(self) -> NDArray[np.float32]:
        """[scales] float32. Of a scale near zero rounding may leave less than zero, in both peers as here."""
        factors = self._spread(self.factors)
        if self.codes.dtype == np.int8:
            return self.codes.astype(np.float32) / factors + self.offset
        return dynamic_map()[self.codes.astype(np.intp)] * factors + self.offset

    def _spread(self, factors: NDArray) -> NDArray:
        return np.repeat(factors, min(self.block, max(1, self.codes.size)))[: self.codes.size]

    #: Minima are stored elsewhere.
    holds_minima = False

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.factors.nbytes + 4

    @property
    def error(self) -> NDArray[np.float64]:
        """[scales] the most by which rounding may have moved each scale."""
        factors = self._spread(self.factors.astype(np.float64))
        if self.codes.dtype == np.int8:
            return np.where(self.codes == 127, 1.0, 0.5) / factors  # +128 is clipped
        gaps = np.diff(dynamic_map().astype(np.float64), prepend=-1.0)
        widest = np.maximum(gaps, np.append(gaps[1:], 0.0))
        return widest[self.codes.astype(np.intp)] / 2 * factors


def nest_linear(scales: ArrayLike, block: int = SUPER_BLOCK) -> NestedScales:
    """Scales in the int8 codes of torchao: round((s − mean) · f), f = 128 / max|s − mean| of each block.

    Where all scales of a block are equal there is nothing left to code and f is 1.

    Args:
        scales: [scales], finite.
        block: scales that share a factor.

    Raises:
        ValueError: no vector of finite numbers, or a block of less than one.
    """
    offset, rest, largest = _rest(scales, block)
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.float32(256) / (2 * largest)
    factors = np.where(np.isfinite(factors), factors, np.float32(1)).astype(np.float32)
    codes = np.rint(rest * np.repeat(factors, min(block, max(1, rest.size)))[: rest.size])
    return NestedScales(np.clip(codes, -128, 127).astype(np.int8), factors, offset, block)


def nest_dynamic(scales: ArrayLike, block: int = SUPER_BLOCK) -> NestedScales:
    """Scales in the uint8 codes of bitsandbytes: the nearest entry of `dynamic_map` times max|s − mean| of each block.

    Args:
        scales: [scales], finite.
        block: scales that share a factor.

    Raises:
        ValueError: no vector of finite numbers, or a block of less than one.
    """
    offset, rest, largest = _rest(scales, block)
    divisor = np.where(largest == 0, np.float32(1), largest)
    table = dynamic_map()
    middles = (table[1:] + table[:-1]) / np.float32(2)
    ratios = rest / np.repeat(divisor, min(block, max(1, rest.size)))[: rest.size]
    codes = np.searchsorted(middles, ratios, side="left")
    return NestedScales(codes.astype(np.uint8), largest, offset, block)


def _rest(scales: ArrayLike, block: int) -> tuple[np.float32, NDArray[np.float32], NDArray[np.float32]]:
    """(the mean, what is left of [scales] without it, the largest magnitude of that in each block)."""
    x = arguments.numbers(scales, "array of scales").astype(np.float32, copy=False)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError(f"scales to be nested are a vector of finite numbers, not of shape {list(x.shape)}")
    offset = _mean(x)
    with np.errstate(over="ignore"):
        rest = x - offset
    if not np.isfinite(rest).all():
        raise ValueError("scales to be nested lie farther apart than float32 reaches")
    return offset, rest, _largest(rest, _require_block(block))


def _require_block(block: int) -> int:
    if arguments.whole(block, "the block of nested scales") < 1:
        raise ValueError(f"a block of {block} nested scales shares no factor")
    return block


def _mean(scales: NDArray[np.float32]) -> np.float32:
    """Summed up in float64, so that the order hardly ever shows in float32."""
    return np.float32(np.sum(scales, dtype=np.float64) / scales.size) if scales.size else np.float32(0)


def _largest(rest: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """[ceil(scales / block)] largest magnitude of each."""
    block = min(block, max(1, rest.size))
    padded = np.pad(np.abs(rest), (0, -rest.size % block))
    return padded.reshape(-1, block).max(axis=1, initial=0).astype(np.float32)


def nested(format: Format, q: QuantizedTensor) -> QuantizedTensor:
    """`q` as a weight of `format`, its scales replaced by what is left of them in 8 bits."""
    granularity, scales = q.granularity, arguments.present(q.scales, "scales")
    nest = nest_linear if format.nested_type == np.int8 else nest_dynamic
    made = nest(_by_row(granularity, scales.astype(np.float32, copy=False)).reshape(-1), format.nested_block)
    return replace(q, format=format, scales=unnest(made, granularity, q.shape), nested=made)


def unnest(made: NestedScales, granularity: Granularity, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The scales of a weight of `shape`, in the shape that its `granularity` gives them.

    Raises:
        ValueError: there are more or fewer of them.
    """
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

"""Shared by the formats whose codes index a table: x ≈ absmax of the block · table[code]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq import native
from onnxq.formats import FloatArray, Format, Granularity, QuantizedTensor


def fit(w: FloatArray, granularity: Granularity) -> FloatArray:
    """The largest magnitude of each block; 0 for a block of zeros, which then decodes to exactly 0."""
    groups, axes = granularity.groups(w)
    return np.max(np.abs(groups), axis=axes, initial=0).astype(np.float32)


def encode(
    format: Format,
    w: FloatArray,
    granularity: Granularity,
    scales: FloatArray | None,
    levels: FloatArray,
) -> QuantizedTensor:
    """The nearest of `levels` (any order) for each weight; a value halfway between two takes the lower one."""
    ascending, middles, order = tables(levels)
    if scales is None and granularity.block is not None and granularity.axis is not None and w.size:
        nothing = np.zeros(0, np.float32)
        made = native.encode_level_blocks(w, granularity.axis, granularity.block, ascending, middles, order, nothing)
        if made is not None:
            return QuantizedTensor(format, granularity, *made)
    if scales is None:
        scales = fit(w, granularity)
    # Where the absmax is zero, any divisor leaves zeros; where it is subnormal, the quotient stays in [-1, 1].
    divisor = granularity.spread(np.where(scales == 0, 1, scales), w.shape)
    codes = order[np.searchsorted(middles, w / divisor, side="left")]
    return QuantizedTensor(format, granularity, codes, scales)


def tables(levels: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.uint8]]:
    """(levels in ascending order, the middles between neighbours, the code of each ascending level)."""
    order = np.argsort(levels, kind="stable")
    ascending = levels[order]
    return ascending, (ascending[1:] + ascending[:-1]) / np.float32(2), order.astype(np.uint8)


def decode(q: QuantizedTensor, levels: FloatArray) -> FloatArray:
    """absmax · level, in float32."""
    assert q.scales is not None
    return levels[q.codes] * q.granularity.spread(q.scales, q.shape)

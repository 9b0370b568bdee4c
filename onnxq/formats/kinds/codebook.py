"""Shared by the formats whose codes index a table: x ≈ scale · table[code]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import FloatArray, Format, Granularity, QuantizedTensor, ScaleArray
from onnxq.formats.kinds import arguments
from onnxq.formats.kinds import fast as _fast


class Tables(NamedTuple):
    """How the level of a number is found: a number takes the code `order[i]` if it is above exactly `i` middles."""

    levels: FloatArray  # in ascending order
    middles: FloatArray  # one fewer
    order: NDArray[np.uint8]


def plain_tables(levels: FloatArray) -> Tables:
    """For levels in any order: the nearest one; halfway between two the lower one."""
    order = np.argsort(levels, kind="stable")
    ascending = levels[order]
    return Tables(ascending, (ascending[1:] + ascending[:-1]) / np.float32(2), order.astype(np.uint8))


def signed_tables(magnitudes: FloatArray, negative_zero: int) -> Tables:
    """For levels of a sign (in bit 3) and one of 8 `magnitudes`: the nearest one; halfway that of smaller magnitude.

    Args:
        negative_zero: the code of numbers below zero that are nearest to it.
    """
    code = np.argsort(magnitudes, kind="stable")
    positive = magnitudes[code]
    middles = (positive[1:] + positive[:-1]) / np.float32(2)
    # "Above" the number next below a middle is "at or above" the middle itself.
    below = np.nextafter(np.append(-middles[::-1], np.float32(0)), np.float32(-np.inf))
    order = np.concatenate([8 + code[:0:-1], [negative_zero], code])
    return Tables(np.concatenate([-positive[::-1], positive]), np.append(below, middles), order.astype(np.uint8))


def fit(w: FloatArray, granularity: Granularity) -> FloatArray:
    """The largest magnitude of each block; 0 for a block of zeros, which then decodes to exactly 0."""
    groups, axes = granularity.groups(w)
    return np.max(np.abs(groups), axis=axes, initial=0).astype(np.float32)


def encode(
    format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None, tables: Tables
) -> QuantizedTensor:
    """The code that `tables` give for each weight over its scale; scales that are None are those of `fit`."""
    fast = _fast.encode(format, w, granularity, tables) if scales is None else None
    if fast is not None:
        return fast
    if scales is None:
        scales = fit(w, granularity)
    return QuantizedTensor(format, granularity, codes(w, granularity, scales, tables), scales)


def codes(w: FloatArray, granularity: Granularity, scales: ScaleArray, tables: Tables) -> NDArray[np.uint8]:
    """As `encode`, the codes alone."""
    # Where the absmax is zero, any divisor leaves zeros; where it is subnormal, the quotient stays in [-1, 1].
    divisor = scales.astype(np.float32, copy=False)
    divisor = granularity.spread(np.where(divisor == 0, np.float32(1), divisor), w.shape)
    return tables.order[np.searchsorted(tables.middles, w / divisor, side="left")]


def decode(q: QuantizedTensor, levels: FloatArray) -> FloatArray:
    """scale · level, in float32.

    Raises:
        ValueError: a code that indexes no level.
    """
    scales = arguments.present(q.scales, "scales").astype(np.float32, copy=False)
    try:
        found = levels[q.codes]
    except IndexError:
        raise ValueError(f"code {int(q.codes.max())} indexes none of the {len(levels)} levels") from None
    return found * q.granularity.spread(scales, q.shape)

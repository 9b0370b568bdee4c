"""A quantized tensor cut into slices, so that it need not be in memory as floats."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from onnxq.encoding import lazy
from onnxq.formats import QuantizedTensor

Index = tuple[slice, ...]


def slices(q: QuantizedTensor) -> Iterator[tuple[Index, QuantizedTensor]]:
    """Slices of at most `encoding.SLICE_ELEMENTS` numbers, of at least one group each, and where they belong.

    They decode to what the whole decodes to there. Their `nbytes` do not add up to those of the whole.
    """
    size = math.prod(q.shape)
    if size <= lazy.SLICE_ELEMENTS:
        yield (slice(None),) * len(q.shape), q
        return
    axis, unit = _axis(q)
    step = lazy.SLICE_ELEMENTS // (size // q.shape[axis])
    step = max(unit, step // unit * unit)
    for start in range(0, q.shape[axis], step):
        index = (slice(None),) * axis + (slice(start, start + step),)
        scales = _scales_index(q, axis, start, step)
        yield (
            index,
            dataclasses.replace(
                q,
                codes=q.codes[index],
                scales=None if q.scales is None else q.scales[scales],
                zero_points=None if q.zero_points is None else q.zero_points[scales],
            ),
        )


def _axis(q: QuantizedTensor) -> tuple[int, int]:
    """The axis to cut along, if possible one that cuts no block, and how many of its indices belong together."""
    free = [axis for axis, length in enumerate(q.shape) if axis != q.granularity.axis and length > 1]
    if free and q.granularity.block is not None:
        return max(free, key=lambda axis: q.shape[axis]), 1
    axis = max(range(len(q.shape)), key=lambda axis: q.shape[axis])
    return axis, (q.granularity.block or 1) if axis == q.granularity.axis else 1


def _scales_index(q: QuantizedTensor, axis: int, start: int, step: int) -> Index:
    """Which scales the indices [start, start + step) of `axis` have."""
    granularity = q.granularity
    if granularity.axis is None:
        return ()
    if granularity.block is None:
        return (slice(start, start + step),) if axis == granularity.axis else (slice(None),)
    if axis != granularity.axis:
        return (slice(None),) * axis + (slice(start, start + step),)
    block = granularity.block
    return (slice(None),) * axis + (slice(start // block, -(-(start + step) // block)),)

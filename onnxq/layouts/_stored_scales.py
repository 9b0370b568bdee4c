"""Scales and minima of formats of two levels (`formats/kinds/super_blocks.py`), each a weight of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.super_blocks import StoredScales
from onnxq.layouts._fields import bit_fields, group_scales
from onnxq.layouts._layout import Layout, Outline, layout
from onnxq.layouts._rows import by_row
from onnxq.layouts._tiles import onnxq_scales, row_tiles


def _rowwise(of: Layout, about: str, *, minima: bool = False) -> Layout:
    """What a layout makes of the scales, or minima, rows of the weight being rows."""

    def outline(w: Outline) -> Outline:
        format = _format(w.format, minima=minima)
        return Outline(format, Granularity(1, w.format.super_block), (w.rows, w.blocks), format.scale_type)

    def pack(q: QuantizedTensor) -> NDArray:
        return of(_stored(q, minima=minima))

    pack.__doc__ = about
    return Layout(pack, lambda w: of.form(outline(w)))


scale_codes = _rowwise(bit_fields, "[rows, bytes] codes of the scales, in the fields of `bit_fields`.")
scale_factors = _rowwise(group_scales, "[rows, super blocks] what the scales' codes are multiplied by.")
minimum_codes = _rowwise(bit_fields, "[rows, bytes] codes of the minima, in the fields of `bit_fields`.", minima=True)
minimum_factors = _rowwise(group_scales, "[rows, super blocks] what the minima's codes are multiplied by.", minima=True)


@layout(lambda w: _format(w.format, minima=False).code_type, lambda w: onnxq_scales.form(w).shape)
def scale_code_tiles(q: QuantizedTensor) -> NDArray:
    """[T, Kp/B, 16] codes of the scales, as `onnxq_scales` has them."""
    return row_tiles(by_row(q.granularity, _stored(q, minima=False).codes))


@layout(lambda w: _format(w.format, minima=False).code_type, lambda w: w.scale_shape)
def stored_scales(q: QuantizedTensor) -> NDArray:
    """Codes of the scales, in the shape of the weight's scales."""
    return _stored(q, minima=False).codes


@layout(np.float32, lambda w: ())
def scale_factor(q: QuantizedTensor) -> NDArray:
    """The one factor that all scales share."""
    return np.asarray(_stored(q, minima=False).scales, np.float32)


@layout(np.float32, lambda w: (w.rows,))
def channel_factors(q: QuantizedTensor) -> NDArray:
    """The factors of a format that has one for all scales of a channel."""
    return np.asarray(_stored(q, minima=False).scales, np.float32).reshape(-1)


def _format(format: Format, *, minima: bool) -> Format:
    found = format.stored_minima if minima else format.stored_scales
    if found is None:
        raise ValueError(f"{format.name} stores no {'minima' if minima else 'scales'} in a format of their own")
    return found


def _stored(q: QuantizedTensor, *, minima: bool) -> QuantizedTensor:
    _format(q.format, minima=minima)
    assert isinstance(q.nested, StoredScales)
    found = q.nested.minima if minima else q.nested.scales
    assert found is not None
    return found

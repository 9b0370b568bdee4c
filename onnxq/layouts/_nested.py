"""Scales in 8 bits (`formats/kinds/nested.py`), in rows of those that share a factor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import QuantizedTensor
from onnxq.formats.kinds.nested import SUPER_BLOCK, NestedScales
from onnxq.layouts._layout import Outline, layout


def _super_blocks(w: Outline) -> int:
    return -(-w.rows * w.blocks // SUPER_BLOCK)


@layout(lambda w: w.format.nested_type, lambda w: (_super_blocks(w), SUPER_BLOCK))
def nested_codes(q: QuantizedTensor) -> NDArray:
    """[S, 256], counted by rows through the whole weight, zeros behind the last."""
    codes = _of(q).codes
    return np.pad(codes, (0, -codes.size % SUPER_BLOCK)).reshape(-1, SUPER_BLOCK)


@layout(np.float32, lambda w: (_super_blocks(w), 1))
def nested_factors(q: QuantizedTensor) -> NDArray:
    """[S, 1]."""
    return _of(q).factors.reshape(-1, 1)


@layout(np.float32, lambda w: ())
def nested_offset(q: QuantizedTensor) -> NDArray:
    """One number, which all scales share."""
    return np.asarray(_of(q).offset)


def _of(q: QuantizedTensor) -> NestedScales:
    if q.nested is None:
        raise ValueError(f"a weight in {q.format.name} has no scales in 8 bits")
    return q.nested

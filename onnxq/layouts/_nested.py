"""Scales in 8 bits (`formats/kinds/nested.py`), in rows of those that share a factor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import QuantizedTensor
from onnxq.formats.kinds.nested import NestedScales
from onnxq.layouts._layout import Outline, layout


def _super_blocks(w: Outline) -> int:
    return -(-w.rows * w.blocks // w.format.nested_block)


@layout(lambda w: w.format.nested_type, lambda w: (_super_blocks(w), w.format.nested_block))
def nested_codes(q: QuantizedTensor) -> NDArray:
    """[S, scales that share a factor], counted by rows through the whole weight, zeros behind the last."""
    codes, block = _of(q).codes, _of(q).block
    return np.pad(codes, (0, -codes.size % block)).reshape(-1, block)


@layout(np.float32, lambda w: (_super_blocks(w), 1))
def nested_factors(q: QuantizedTensor) -> NDArray:
    """[S, 1]."""
    return _of(q).factors.reshape(-1, 1)


@layout(np.float32, lambda w: ())
def nested_offset(q: QuantizedTensor) -> NDArray:
    """One number, which all scales share."""
    return np.asarray(_of(q).offset)


def _of(q: QuantizedTensor) -> NestedScales:
    if not isinstance(q.nested, NestedScales):
        raise ValueError(f"a weight in {q.format.name} has no scales in 8 bits")
    return q.nested

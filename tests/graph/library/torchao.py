"""Rows of torchao's NF4 tensors."""

from __future__ import annotations

import numpy as np
from library.rows import W, absmax, nearest, row, same

from onnxq import formats

GROUP = "torchao `NF4Tensor`"


@row(GROUP, "from_tensor, get_original_weight", '`formats.quantize(w, "nf4_dq")`, `.dequantize()`')
def _torchao() -> None:
    q, scales = formats.quantize(W, "nf4_dq"), absmax(W, 64).reshape(-1)
    assert q.nested is not None
    mean = scales.mean(dtype=np.float64).astype(np.float32)
    factor = 256 / (2 * np.abs(scales - mean).max())
    codes = np.clip(np.rint((scales - mean) * factor), -128, 127)
    same(q.nested.codes, codes)
    same(np.asarray(q.scales).reshape(-1), codes / factor + mean, 1e-6)


FOUR = np.round(np.asarray(formats.get("nf4").levels, np.float64), 4)


@row(GROUP, "levels of the user's own", '`formats.quantize(w, "nf4_dq", levels=table)`; `onnxq encode --levels`')
def _levels() -> None:
    """torchao's table has four digits."""
    q, scales = formats.quantize(W, "nf4", levels=FOUR), absmax(W, 64)
    wanted = nearest(W.reshape(16, 2, 64) / scales[..., None], FOUR.astype(np.float32))
    same(q.codes, wanted.reshape(W.shape))
    same(q.dequantize(), (FOUR.astype(np.float32)[wanted] * scales[..., None]).reshape(W.shape))


@row(
    GROUP,
    "`scaler_block_size`",
    '`formats.quantize(w, "nf4_dq512")`: 512 scales share a factor; any number from 1 on',
)
def _scaler_block() -> None:
    q, scales = formats.quantize(W, "nf4_dq8"), absmax(W, 64).reshape(4, 8)
    assert q.nested is not None
    rest = scales - scales.mean(dtype=np.float64).astype(np.float32)
    factors = 256 / (2 * np.abs(rest).max(axis=1))
    same(q.nested.factors, factors)
    same(q.nested.codes, np.clip(np.rint(rest * factors[:, None]), -128, 127).reshape(-1))

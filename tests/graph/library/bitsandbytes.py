"""Rows of bitsandbytes: 4 bits in blocks, packed, with nested scales."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from library.rows import W, absmax, nearest, row, same

from onnxq import formats, layouts
from onnxq.formats import Granularity

GROUP = "bitsandbytes-like `Nf4Quantizer`"


@row(GROUP, "quantize, dequantize", '`formats.quantize(w, "nf4")`, `.dequantize()`; `onnxq encode -w nf4`')
def _nf4() -> None:
    q, levels = formats.quantize(W, "nf4"), formats.get("nf4").levels
    assert levels is not None
    scales = absmax(W, 64)
    wanted = nearest((W.reshape(16, 2, 64) / scales[..., None]), levels)
    same(q.codes, wanted.reshape(W.shape))
    same(q.scales, scales)
    same(q.dequantize(), (levels[wanted] * scales[..., None]).reshape(W.shape))


@row(GROUP, "FP4", '`formats.quantize(w, "fp4")`')
def _fp4() -> None:
    q, levels = formats.quantize(W, "fp4"), formats.get("fp4").levels
    assert levels is not None
    found = levels[nearest(W.reshape(16, 2, 64) / absmax(W, 64)[..., None], levels)]
    same(q.dequantize(), (found * absmax(W, 64)[..., None]).reshape(W.shape))


@row(GROUP, "pack, unpack (two codes a byte)", "`layouts.matmul_bnb4(q)`, `layouts.from_matmul_bnb4(…)`")
def _pack() -> None:
    q = formats.quantize(W.reshape(-1), "nf4")
    packed = layouts.matmul_bnb4(q)
    same(packed, (q.codes[0::2] << 4) | q.codes[1::2])
    assert q.scales is not None
    same(layouts.from_matmul_bnb4(q.format, packed, q.scales, W.size, 64).codes, q.codes)


@row(GROUP, "block size", "`Granularity(axis, block)`; `-g block32`")
def _block() -> None:
    same(formats.quantize(W, "nf4", Granularity(-1, 32)).scales, absmax(W, 32))


@row(GROUP, "the code of a number, the number of a code", '`formats.nearest(x, "nf4")`, `formats.values(codes, "nf4")`')
def _single() -> None:
    levels, x = formats.get("nf4").levels, np.linspace(-1.2, 1.2, 97)
    assert levels is not None
    same(formats.nearest(x, "nf4"), nearest(x.astype(np.float32), levels))
    same(formats.values(np.arange(16), "nf4"), levels)


@row(GROUP, "dequantize to float16 or bfloat16", "`q.dequantize(np.float16)`; `onnxq decode --dtype bfloat16`")
def _half() -> None:
    q = formats.quantize(W, "nf4")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        same(q.dequantize(dtype), q.dequantize().astype(dtype))


@row(GROUP, "`create_dynamic_map`, `create_linear_map`", "`formats.dynamic_map(signed)`, `formats.linear_map(signed)`")
def _maps() -> None:
    for signed in (True, False):
        counts = [2 ** (i + (not signed)) for i in range(7)]
        middles = [(0.1 + 0.9 * (np.arange(n) + 0.5) / n) * 10.0 ** (i - 6) for i, n in enumerate(counts)]
        below = [-x for x in middles] if signed else []
        same(formats.dynamic_map(signed), np.sort(np.concatenate([*middles, *below, [0, 1]])), 1e-6)
    same(np.unique(np.round(formats.linear_map(), 6)), np.round(np.arange(-127, 128) / 127, 6), 1e-6)


@row(GROUP, "double quantization (nested scales)", '`formats.quantize(w, "nf4_dq_bnb")`')
def _nested() -> None:
    plain, q = formats.quantize(W, "nf4"), formats.quantize(W, "nf4_dq_bnb")
    assert plain.scales is not None and q.nested is not None
    rest = plain.scales.reshape(-1) - plain.scales.mean(dtype=np.float64).astype(np.float32)
    codes = nearest(rest / np.abs(rest).max(), formats.dynamic_map())
    same(q.nested.codes, codes)
    same(q.scales, (formats.dynamic_map()[codes] * np.abs(rest).max() + q.nested.offset).reshape(16, 2), 1e-6)

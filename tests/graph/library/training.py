"""Rows of a training library's module: observers, fake quantization, GGUF, benchmarks of arrays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from library.rows import W, X, absmax, row, same

from onnxq import algorithms, analysis, fake_quant, formats, layouts
from onnxq.analysis import synthetic
from onnxq.checkpoints.encode_arrays import encode_arrays
from onnxq.checkpoints.gguf_file import Gguf, write_gguf
from onnxq.formats import Granularity

GROUP = "a training library's quantization module"


@row(
    GROUP,
    "observers: min/max, moving average, percentile",
    "`fake_quant.Observer`; `onnxq calibrate --percentile`, `--momentum`, `--bins`",
)
def _observers() -> None:
    observer = fake_quant.Observer("moving-average", momentum=0.25)
    for factor in (1, 2):
        observer.update(X * factor)
    same(observer.grid().scale, 1.25 * (X.max() - X.min()) / 255, 1e-6)
    assert (observer.batches, observer.has_data) == (2, True)
    assert (observer.low, observer.high) == ((2 * X).min(), (2 * X).max())


@row(GROUP, "fake quantization, straight-through gradient", "`fake_quant.forward`, `backward`; torch: `FakeQuantize`")
def _fake() -> None:
    grid = fake_quant.grid_over(-1, 1, 4)
    same(fake_quant.forward(X, grid), np.clip(np.rint(X / grid.scale), -7, 7) * grid.scale)
    same(fake_quant.backward(np.ones_like(X), X, grid), np.abs(X / grid.scale) <= 7)


@row(GROUP, "fake quantization per channel and in blocks", "`fake_quant.fit(x, bits, axis=…, block=…)`")
def _blocked() -> None:
    grid = fake_quant.fit(W, 4, axis=1, block=32)
    scales = absmax(W, 32) / np.float32(7)
    same(grid.scale, scales, 1e-7)
    wanted = np.clip(np.rint(W.reshape(16, 4, 32) / grid.scale[..., None]), -7, 7)
    same(fake_quant.codes(W, grid), wanted.reshape(W.shape))
    same(fake_quant.from_codes(fake_quant.codes(W, grid), grid), fake_quant.forward(W, grid))


@row(GROUP, "learned step size (LSQ)", "`fake_quant.backward_lsq`, `initial_scale`, `gradient_factor`")
def _lsq() -> None:
    grid = fake_quant.grid_over(-1, 1, 4)
    v = (X / grid.scale).astype(np.float64)
    wanted = np.where(v < -7, -7, np.where(v > 7, 7, np.rint(v) - v)).sum()
    same(fake_quant.backward_lsq(np.ones_like(X), X, grid)[1], wanted, 1e-4)
    same(fake_quant.initial_scale(X, 7), 2 * np.abs(X).mean() / np.sqrt(7), 1e-6)


@row(GROUP, "GGUF blocks: Q4_0 …, encode and decode", '`formats.quantize(w, "q4_0")`, `layouts.gguf`, `from_gguf`')
def _gguf() -> None:
    q, blocks = formats.quantize(W, "q4_0"), W.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    d = largest / np.float32(-8)
    same(q.codes.reshape(-1, 32) + 8, np.clip(np.trunc(blocks / d.astype(np.float64) + 8.5), 0, 15))
    same(layouts.from_gguf(q.format, layouts.gguf(q), W.shape).codes, q.codes)


@row(GROUP, "GGUF files", "`checkpoints.gguf_file.write_gguf`, `Gguf`; `onnxq encode -o w.gguf`, `onnxq decode`")
def _gguf_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.gguf"
        encode_arrays({"w": W}, path, "q8_0")
        same(Gguf(path)["w"].dequantize(), formats.quantize(W, "q8_0").dequantize())  # type: ignore[union-attr]
        write_gguf(path, [("w", lambda: W)], replace=True)
        same(Gguf(path)["w"], W)


@row(
    GROUP,
    "double quantization of integer formats, their scales in int8",
    '`formats.quantize(w, "int4_dq")`, `"int8_dq"`; `formats.nest_linear`, `nest_dynamic`, `unnest` of scales',
)
def _double() -> None:
    q, scales = formats.quantize(W, "int4_dq"), formats.quantize(W, "int4").scales
    assert q.nested is not None and scales is not None
    flat = scales.reshape(-1)
    mean = flat.mean(dtype=np.float64).astype(np.float32)
    factor = 256 / (2 * np.abs(flat - mean).max())
    codes = np.clip(np.rint((flat - mean) * factor), -128, 127)
    same(q.nested.codes, codes)
    same(formats.nest_linear(flat).codes, codes)
    nested_scales = codes / factor + mean
    same(formats.unnest(q.nested, q.granularity, q.shape).reshape(-1), nested_scales, 1e-6)
    blocks = formats.quantize(W, "int4").codes.reshape(-1, 32) * nested_scales[:, None]
    same(q.dequantize(), blocks.reshape(W.shape), 1e-6)


@row(GROUP, "scales of least squared error", '`algorithms.quantize(w, word, algorithm="mse")`')
def _mse() -> None:
    q = algorithms.quantize(W, "nf4", Granularity(1, 64), "mse")
    own = formats.quantize(W, "nf4", Granularity(1, 64))
    groups = [np.square(t.dequantize() - W).reshape(16, 2, 64).sum(axis=2) for t in (q, own)]
    assert (groups[0] <= groups[1]).all() and groups[0].sum() < groups[1].sum()


@row(GROUP, "LSQ+: learned scale and offset", "`fake_quant.OffsetGrid`, `forward_offset`, `backward_offset`")
def _lsq_plus() -> None:
    grid = fake_quant.offset_grid_over(-1, 1, 3)
    v = (X.astype(np.float64) - grid.offset) / grid.scale
    same(fake_quant.forward_offset(X, grid), np.clip(np.rint(v), 0, 7) * grid.scale + grid.offset, 1e-6)
    _, of_scale, of_offset = fake_quant.backward_offset(np.ones_like(X), X, grid)
    same(of_scale, np.where(v < 0, 0, np.where(v > 7, 7, np.rint(v) - v)).sum(), 1e-4)
    same(of_offset, np.sum((v < 0) | (v > 7)))


@row(GROUP, "gradients of ranges", "`fake_quant.backward_range(gradient, x, low, high)`")
def _ranges() -> None:
    _, low, high = fake_quant.backward_range(np.ones_like(X), X, -1, 1, 8, rounding=False)
    assert (low, high) == ((X < -1).sum(), (X > 1).sum())


@row(GROUP, "the grid of an encoded weight", "`fake_quant.grid_of(q)`")
def _grid_of() -> None:
    q = formats.quantize(W, "int4")
    same(fake_quant.codes(W, fake_quant.grid_of(q)), q.codes)


@row(
    GROUP,
    "benchmarks of arrays, folders, models",
    "`analysis.benchmark_arrays`; `onnxq benchmark FOLDER --csv --plot`",
)
def _benchmark() -> None:
    found = analysis.benchmark_arrays({"a": W, "b": X}, ["int8"], ["channel"], inputs=300)
    ((row,), (other,), (both,)) = found.tables.values()
    got = formats.quantize(W, "int8", Granularity(0)).dequantize()
    x = np.random.default_rng(1).standard_normal((300, 128), dtype=np.float32)
    same(row.retention, 100 * np.mean((x @ W.T).argmax(1) == (x @ got.T).argmax(1)))
    assert row.stats is not None and other.stats is not None and both.stats is not None
    same(both.stats.mse, (row.stats.mse * W.size + other.stats.mse * X.size) / (W.size + X.size), 1e-9)


@row(
    GROUP,
    "makers of weights: mean, deviation, range, outliers, rank, correlation",
    "`analysis.benchmark_made`, `analysis.synthetic`; `onnxq benchmark --make 'outliers rate=0.01'`",
)
def _makers() -> None:
    made = synthetic.Made("outliers", {"rate": 0.25, "size": 9})
    same(np.mean(np.abs(made.weights((64, 64), 3)) == 9), 0.25)
    (row,) = analysis.benchmark_made([made], ["int4"], ["tensor"], sizes=[(8, 32)], seeds=[5]).tables.values()
    assert row[0].stats is not None
    same(row[0].stats.mse, analysis.tensor_error(made.weights((8, 32), 5), "int4").mse, 1e-12)

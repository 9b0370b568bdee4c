"""docs/library.md: what users of five libraries look for, and its equal here, each held against the formula itself.

`python tests/graph/test_library.py --write` writes the page.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import Recipe, algorithms, analysis, fake_quant, formats, layouts
from onnxq.analysis import synthetic
from onnxq.checkpoints.encode_arrays import encode_arrays
from onnxq.checkpoints.gguf_file import Gguf, write_gguf
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.linear4bit import Linear4Bit
from onnxq.formats import Granularity
from onnxq.model.weights import Role
from onnxq.runtime.session import Session

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
W = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32) + 0.3
HEAD = """# What other libraries call it

People come from five kinds of libraries; this is where each of their functions is here. The page is made by
`python tests/graph/test_library.py --write`, and each row with an equal by a test that calls it and holds it against a
transcription of the formula.
"""
ROWS: list[tuple[str, str, str, Callable[[], None] | None]] = []


def row(group: str, theirs: str, ours: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(check: Callable[[], None]) -> Callable[[], None]:
        ROWS.append((group, theirs, ours, check))
        return check

    return add


def same(a: object, b: object, tolerance: float = 0.0) -> None:
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


def absmax(w: NDArray, block: int) -> NDArray:
    return np.abs(w.reshape(w.shape[0], -1, block)).max(axis=2)


def nearest(x: NDArray, levels: NDArray) -> NDArray:
    """The index of the nearest level, by looking at all."""
    return np.abs(x[..., None].astype(np.float64) - levels).argmin(axis=-1)


BITS = "bitsandbytes-like `Nf4Quantizer`"


@row(BITS, "quantize, dequantize", '`formats.quantize(w, "nf4")`, `.dequantize()`; `onnxq encode -w nf4`')
def _nf4() -> None:
    q, levels = formats.quantize(W, "nf4"), formats.get("nf4").levels
    assert levels is not None
    scales = absmax(W, 64)
    wanted = nearest((W.reshape(16, 2, 64) / scales[..., None]), levels)
    same(q.codes, wanted.reshape(W.shape))
    same(q.scales, scales)
    same(q.dequantize(), (levels[wanted] * scales[..., None]).reshape(W.shape))


@row(BITS, "FP4", '`formats.quantize(w, "fp4")`')
def _fp4() -> None:
    q, levels = formats.quantize(W, "fp4"), formats.get("fp4").levels
    assert levels is not None
    found = levels[nearest(W.reshape(16, 2, 64) / absmax(W, 64)[..., None], levels)]
    same(q.dequantize(), (found * absmax(W, 64)[..., None]).reshape(W.shape))


@row(BITS, "pack, unpack (two codes a byte)", "`layouts.matmul_bnb4(q)`, `layouts.from_matmul_bnb4(…)`")
def _pack() -> None:
    q = formats.quantize(W.reshape(-1), "nf4")
    packed = layouts.matmul_bnb4(q)
    same(packed, (q.codes[0::2] << 4) | q.codes[1::2])
    assert q.scales is not None
    same(layouts.from_matmul_bnb4(q.format, packed, q.scales, W.size, 64).codes, q.codes)


@row(BITS, "block size", "`Granularity(axis, block)`; `-g block32`")
def _block() -> None:
    same(formats.quantize(W, "nf4", Granularity(-1, 32)).scales, absmax(W, 32))


@row(BITS, "the code of a number, the number of a code", '`formats.nearest(x, "nf4")`, `formats.values(codes, "nf4")`')
def _single() -> None:
    levels, x = formats.get("nf4").levels, np.linspace(-1.2, 1.2, 97)
    assert levels is not None
    same(formats.nearest(x, "nf4"), nearest(x.astype(np.float32), levels))
    same(formats.values(np.arange(16), "nf4"), levels)


@row(BITS, "dequantize to float16 or bfloat16", "`q.dequantize(np.float16)`; `onnxq decode --dtype bfloat16`")
def _half() -> None:
    q = formats.quantize(W, "nf4")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        same(q.dequantize(dtype), q.dequantize().astype(dtype))


@row(BITS, "`create_dynamic_map`, `create_linear_map`", "`formats.dynamic_map(signed)`, `formats.linear_map(signed)`")
def _maps() -> None:
    for signed in (True, False):
        counts = [2 ** (i + (not signed)) for i in range(7)]
        middles = [(0.1 + 0.9 * (np.arange(n) + 0.5) / n) * 10.0 ** (i - 6) for i, n in enumerate(counts)]
        below = [-x for x in middles] if signed else []
        same(formats.dynamic_map(signed), np.sort(np.concatenate([*middles, *below, [0, 1]])), 1e-6)
    same(np.unique(np.round(formats.linear_map(), 6)), np.round(np.arange(-127, 128) / 127, 6), 1e-6)


@row(BITS, "double quantization (nested scales)", '`formats.quantize(w, "nf4_dq_bnb")`')
def _nested() -> None:
    plain, q = formats.quantize(W, "nf4"), formats.quantize(W, "nf4_dq_bnb")
    assert plain.scales is not None and q.nested is not None
    rest = plain.scales.reshape(-1) - plain.scales.mean(dtype=np.float64).astype(np.float32)
    codes = nearest(rest / np.abs(rest).max(), formats.dynamic_map())
    same(q.nested.codes, codes)
    same(q.scales, (formats.dynamic_map()[codes] * np.abs(rest).max() + q.nested.offset).reshape(16, 2), 1e-6)


TORCHAO = "torchao `NF4Tensor`"


@row(TORCHAO, "from_tensor, get_original_weight", '`formats.quantize(w, "nf4_dq")`, `.dequantize()`')
def _torchao() -> None:
    q, scales = formats.quantize(W, "nf4_dq"), absmax(W, 64).reshape(-1)
    assert q.nested is not None
    mean = scales.mean(dtype=np.float64).astype(np.float32)
    factor = 256 / (2 * np.abs(scales - mean).max())
    codes = np.clip(np.rint((scales - mean) * factor), -128, 127)
    same(q.nested.codes, codes)
    same(np.asarray(q.scales).reshape(-1), codes / factor + mean, 1e-6)


FOUR = np.round(np.asarray(formats.get("nf4").levels, np.float64), 4)


@row(TORCHAO, "levels of the user's own", '`formats.quantize(w, "nf4_dq", levels=table)`; `onnxq encode --levels`')
def _levels() -> None:
    """torchao's table has four digits."""
    q, scales = formats.quantize(W, "nf4", levels=FOUR), absmax(W, 64)
    wanted = nearest(W.reshape(16, 2, 64) / scales[..., None], FOUR.astype(np.float32))
    same(q.codes, wanted.reshape(W.shape))
    same(q.dequantize(), (FOUR.astype(np.float32)[wanted] * scales[..., None]).reshape(W.shape))


@row(
    TORCHAO,
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


SCIENCE = "scientific quantization methods"


@row(SCIENCE, "uniform quantization over [min, max]", '`formats.quantize(w, "uniform4")`')
def _uniform() -> None:
    w = np.random.default_rng(2).uniform(2, 5, (4, 50)).astype(np.float32)
    q = formats.quantize(w, "uniform4", Granularity())
    step = (np.float64(w.max()) - w.min()) / 15
    same(q.dequantize(), np.rint((w - np.float64(w.min())) / step) * step + w.min(), 1e-5)


@row(SCIENCE, "symmetric quantization, per tensor or channel", '`formats.quantize(w, "int8", Granularity(0))`')
def _symmetric() -> None:
    q, scale = formats.quantize(W, "int8", Granularity(0)), np.abs(W).max(axis=1) / np.float32(127)
    same(q.codes, np.clip(np.rint(W / scale[:, None]), -127, 127))
    same(q.scales, scale, 1e-7)


@row(SCIENCE, "affine (asymmetric) quantization", '`formats.quantize(w, "uint8", Granularity())`')
def _affine() -> None:
    q = formats.quantize(W, "uint8", Granularity())
    scale = np.float32((np.float64(W.max()) - W.min()) / 255)
    zero = np.rint(-np.float64(W.min()) / scale)
    same(q.codes, np.clip(np.rint(W / scale) + zero, 0, 255))
    assert (float(np.asarray(q.scales)), float(np.asarray(q.zero_points))) == (scale, zero)


@row(SCIENCE, "power-of-two scales", '`formats.quantize(w, "pow2_int4")`')
def _pow2() -> None:
    q = formats.quantize(W, "pow2_int4", Granularity())
    lower = np.floor(np.log2(np.abs(W).max() / 7))
    errors = {s: np.square(np.clip(np.rint(W / s), -7, 7) * s - W).sum() for s in 2.0 ** np.array([lower, lower + 1])}
    assert float(np.asarray(q.scales)) == min(errors, key=lambda s: errors[s])


@row(SCIENCE, "theoretical error and SQNR", "`analysis.theory`")
def _theory() -> None:
    assert analysis.theory.max_error(0.5) == 0.25 and analysis.theory.noise_power(0.5) == 0.25 / 12
    same(analysis.theory.sine_sqnr(8), 6.02 * 8 + 1.76, 1e-3)


@row(SCIENCE, "MSE, SQNR, cosine, largest error", "`analysis.error_stats(a, b)`, `analysis.tensor_error(w, word)`")
def _errors() -> None:
    got = formats.quantize(W, "int4").dequantize()
    stats, e = analysis.error_stats(W, got), (got - W).astype(np.float64)
    same([stats.mse, stats.max_abs, stats.bias], [np.mean(e**2), np.abs(e).max(), e.mean()], 1e-9)
    same(stats.sqnr, 10 * np.log10(np.sum(W.astype(np.float64) ** 2) / np.sum(e**2)), 1e-9)
    same(stats.cosine, np.sum(W * got) / np.linalg.norm(W) / np.linalg.norm(got), 1e-6)


@row(SCIENCE, "sensitivity to the scale, best scale", "`analysis.scale_sweep`, `analysis.best_scale`")
def _sweep() -> None:
    scale = np.float32(np.abs(W).max() / np.float64(127))
    for point in analysis.scale_sweep(W, "int8", factors=(0.5, 1.0, 2.0)):
        s = scale * np.float32(point.factor)
        same(point.stats.mse, np.mean((np.clip(np.rint(W / s), -127, 127) * s - W) ** 2), 1e-5)


@row(SCIENCE, "impact of outliers", "`analysis.outlier_impact`")
def _outliers() -> None:
    found = analysis.outlier_impact(W, "int8", percent=1)
    assert found.threshold == np.sort(np.abs(W).reshape(-1))[-round(W.size / 100)]


@row(SCIENCE, "comparison of bit widths", "`analysis.compare_bit_widths`")
def _widths() -> None:
    for bits, stats in analysis.compare_bit_widths(W, (3, 6)).items():
        s = np.float32(np.abs(W).max() / np.float64(2 ** (bits - 1) - 1))
        same(stats.mse, np.mean((np.rint(W / s) * s - W) ** 2), 1e-5)


@row(SCIENCE, "comparison of granularities", "`analysis.compare_granularities`; `onnxq analyze -g tensor -g channel`")
def _granularities() -> None:
    found = analysis.compare_granularities(W, "int8", Role(0, 0, 1))
    same(found["channel"].mse, analysis.tensor_error(W, "int8", Granularity(0)).mse)


@row(SCIENCE, "accuracy retention", "`analysis.retention`")
def _retention() -> None:
    same(analysis.retention(0.8, 0.6), 75.0, 1e-12)


TRAINING = "a training library's quantization module"


@row(
    TRAINING,
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


@row(
    TRAINING, "fake quantization, straight-through gradient", "`fake_quant.forward`, `backward`; torch: `FakeQuantize`"
)
def _fake() -> None:
    grid = fake_quant.grid_over(-1, 1, 4)
    same(fake_quant.forward(X, grid), np.clip(np.rint(X / grid.scale), -7, 7) * grid.scale)
    same(fake_quant.backward(np.ones_like(X), X, grid), np.abs(X / grid.scale) <= 7)


@row(TRAINING, "fake quantization per channel and in blocks", "`fake_quant.fit(x, bits, axis=…, block=…)`")
def _blocked() -> None:
    grid = fake_quant.fit(W, 4, axis=1, block=32)
    scales = absmax(W, 32) / np.float32(7)
    same(grid.scale, scales, 1e-7)
    wanted = np.clip(np.rint(W.reshape(16, 4, 32) / grid.scale[..., None]), -7, 7)
    same(fake_quant.codes(W, grid), wanted.reshape(W.shape))
    same(fake_quant.from_codes(fake_quant.codes(W, grid), grid), fake_quant.forward(W, grid))


@row(TRAINING, "learned step size (LSQ)", "`fake_quant.backward_lsq`, `initial_scale`, `gradient_factor`")
def _lsq() -> None:
    grid = fake_quant.grid_over(-1, 1, 4)
    v = (X / grid.scale).astype(np.float64)
    wanted = np.where(v < -7, -7, np.where(v > 7, 7, np.rint(v) - v)).sum()
    same(fake_quant.backward_lsq(np.ones_like(X), X, grid)[1], wanted, 1e-4)
    same(fake_quant.initial_scale(X, 7), 2 * np.abs(X).mean() / np.sqrt(7), 1e-6)


@row(TRAINING, "GGUF blocks: Q4_0 …, encode and decode", '`formats.quantize(w, "q4_0")`, `layouts.gguf`, `from_gguf`')
def _gguf() -> None:
    q, blocks = formats.quantize(W, "q4_0"), W.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    d = largest / np.float32(-8)
    same(q.codes.reshape(-1, 32) + 8, np.clip(np.trunc(blocks / d.astype(np.float64) + 8.5), 0, 15))
    same(layouts.from_gguf(q.format, layouts.gguf(q), W.shape).codes, q.codes)


@row(TRAINING, "GGUF files", "`checkpoints.gguf_file.write_gguf`, `Gguf`; `onnxq encode -o w.gguf`, `onnxq decode`")
def _gguf_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.gguf"
        encode_arrays({"w": W}, path, "q8_0")
        same(Gguf(path)["w"].dequantize(), formats.quantize(W, "q8_0").dequantize())  # type: ignore[union-attr]
        write_gguf(path, [("w", lambda: W)], replace=True)
        same(Gguf(path)["w"], W)


@row(
    TRAINING,
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


@row(TRAINING, "scales of least squared error", '`algorithms.quantize(w, word, algorithm="mse")`')
def _mse() -> None:
    q = algorithms.quantize(W, "nf4", Granularity(1, 64), "mse")
    own = formats.quantize(W, "nf4", Granularity(1, 64))
    groups = [np.square(t.dequantize() - W).reshape(16, 2, 64).sum(axis=2) for t in (q, own)]
    assert (groups[0] <= groups[1]).all() and groups[0].sum() < groups[1].sum()


@row(SCIENCE, "errors within half a step", "`analysis.error_within_bounds(a, b, step)`")
def _bounds() -> None:
    q = formats.quantize(W, "int8", Granularity(0))
    got, steps = q.dequantize(), np.asarray(q.scales)[:, None]
    for step in (steps, steps * 0.9):
        wanted = np.abs(got - W).max(axis=1, keepdims=True) <= step / 2
        assert analysis.error_within_bounds(W, got, step) == wanted.all()


@row(SCIENCE, "quality score, best by MSE", "`analysis.quality_score`, `compare_formats`, `best_by_mse`")
def _score() -> None:
    found = analysis.compare_formats(W, ("int4", "uint4", "nf4"))
    errors = {word: np.mean((formats.quantize(W, word).dequantize() - W) ** 2) for word in found}
    assert analysis.best_by_mse(found) == min(errors, key=lambda word: errors[word])
    same(analysis.quality_score(found["nf4"]), 100 * (1 - np.sqrt(errors["nf4"] / np.mean(W**2))), 1e-4)


@row(SCIENCE, "compression ratio", "`analysis.compression_ratio(q)`")
def _ratio() -> None:
    same(analysis.compression_ratio(formats.quantize(W, "int4")), 32 / (4 + 32 / 32))


@row(SCIENCE, "coefficient of scale sensitivity", "`analysis.scale_sensitivity(scale_sweep(w, word))`")
def _sensitivity() -> None:
    points = analysis.scale_sweep(W, "int8", factors=(0.5, 1.0, 2.0))
    errors = [point.stats.mse for point in points]
    same(analysis.scale_sensitivity(points), np.std(errors) / np.mean(errors), 1e-12)


@row(SCIENCE, "outlier rate at a threshold", "`analysis.outlier_rate(w, threshold)`")
def _rate() -> None:
    same(analysis.outlier_rate(W, 2), np.mean(np.abs(W - W.mean()) > 2 * W.std()))


@row(SCIENCE, "affine over [min, max] itself", "`fake_quant.fit(x, bits, symmetric=False, widen=False)`")
def _unwidened() -> None:
    x = np.random.default_rng(2).uniform(2, 5, (4, 50)).astype(np.float32)
    grid = fake_quant.fit(x, 4, symmetric=False, widen=False)
    s = np.float32((np.float64(x.max()) - x.min()) / 15)
    z = np.rint(-np.float64(x.min()) / s)
    same(fake_quant.forward(x, grid), (np.clip(np.rint(x / s) + z, 0, 15) - z) * s, 1e-6)


@row(SCIENCE, "power-of-two scales over [min, max]", "`fake_quant.fit(x, bits, powers_of_two=True)`")
def _pow2_range() -> None:
    grid = fake_quant.fit(W, 5, symmetric=False, widen=False, powers_of_two=True)
    same(grid.scale, 2.0 ** np.ceil(np.log2((np.float64(W.max()) - W.min()) / 31)))


@row(SCIENCE, "per tensor, per channel, in blocks; symmetric, affine", "`onnxq quantize -g tensor --affine`; `Recipe`")
def _forms() -> None:
    recipe = Recipe("w4a16", granularity="tensor", symmetric=False)  # test_granularity.py: what the files compute
    assert (recipe.granularity, recipe.symmetric) == ("tensor", False)


@row(TRAINING, "LSQ+: learned scale and offset", "`fake_quant.OffsetGrid`, `forward_offset`, `backward_offset`")
def _lsq_plus() -> None:
    grid = fake_quant.offset_grid_over(-1, 1, 3)
    v = (X.astype(np.float64) - grid.offset) / grid.scale
    same(fake_quant.forward_offset(X, grid), np.clip(np.rint(v), 0, 7) * grid.scale + grid.offset, 1e-6)
    _, of_scale, of_offset = fake_quant.backward_offset(np.ones_like(X), X, grid)
    same(of_scale, np.where(v < 0, 0, np.where(v > 7, 7, np.rint(v) - v)).sum(), 1e-4)
    same(of_offset, np.sum((v < 0) | (v > 7)))


@row(TRAINING, "gradients of ranges", "`fake_quant.backward_range(gradient, x, low, high)`")
def _ranges() -> None:
    _, low, high = fake_quant.backward_range(np.ones_like(X), X, -1, 1, 8, rounding=False)
    assert (low, high) == ((X < -1).sum(), (X > 1).sum())


@row(TRAINING, "the grid of an encoded weight", "`fake_quant.grid_of(q)`")
def _grid_of() -> None:
    q = formats.quantize(W, "int4")
    same(fake_quant.codes(W, fake_quant.grid_of(q)), q.codes)


@row(
    TRAINING,
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
    TRAINING,
    "makers of weights: mean, deviation, range, outliers, rank, correlation",
    "`analysis.benchmark_made`, `analysis.synthetic`; `onnxq benchmark --make 'outliers rate=0.01'`",
)
def _makers() -> None:
    made = synthetic.Made("outliers", {"rate": 0.25, "size": 9})
    same(np.mean(np.abs(made.weights((64, 64), 3)) == 9), 0.25)
    (row,) = analysis.benchmark_made([made], ["int4"], ["tensor"], sizes=[(8, 32)], seeds=[5]).tables.values()
    assert row[0].stats is not None
    same(row[0].stats.mse, analysis.tensor_error(made.weights((8, 32), 5), "int4").mse, 1e-12)


LAYER = "packed 4-bit linear layer (`Linear4Bit`)"


@row(LAYER, "pack, unpack of a checkpoint", "`layouts.linear4bit`, `from_linear4bit`; `onnxq import-weights`")
def _linear4bit() -> None:
    packed = np.arange(64, dtype=np.uint8).reshape(2, 32)
    q = layouts.from_linear4bit(packed, np.ones((2, 1), np.float16))
    same(q.dequantize()[:, 0::2], (packed & 15).astype(int) - 8)
    same(q.dequantize()[:, 1::2], (packed >> 4).astype(int) - 8)
    same(layouts.linear4bit(q)[0], packed)


def by_hand(packed: NDArray, scales: NDArray, group: int) -> NDArray:
    """w[n, k] = scale[n, k // group] · (code − 8), the even k in the low nibble."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.float64) - 8
    return codes * scales.astype(np.float64)[:, np.arange(codes.shape[1]) // group]


@row(LAYER, "`new`, `forward` (fused), `forward_unpack`, `unpack`, bias", "`onnxq.Linear4Bit.new`, `.forward(x)` …")
def _layer() -> None:
    """130 inputs in groups of 64: the last one has 2."""
    rng = np.random.default_rng(3)
    packed, scales = rng.integers(0, 256, (24, 65), np.uint8), rng.uniform(0.5, 1, (24, 3)).astype(np.float16)
    layer, x = Linear4Bit.new(packed, scales, 64, np.ones(24)), rng.standard_normal((5, 130)).astype(np.float32)
    same(layer.unpack(), by_hand(packed, scales, 64))
    wanted = x.astype(np.float64) @ by_hand(packed, scales, 64).T + 1
    for y in (layer.forward(x), layer.forward_unpack(x)):
        assert np.linalg.norm(y - wanted) <= 1e-6 * np.linalg.norm(wanted)


@row(LAYER, "quantize a float layer", "`onnxq.Linear4Bit.quantize(w, group)`")
def _layer_of_floats() -> None:
    layer = Linear4Bit.quantize(W, 32)
    blocks = W.reshape(16, 4, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2)[..., 0]
    scales = (largest / np.float64(-8)).astype(np.float32).astype(np.float16)
    same(layer.scales, scales)
    codes = np.clip(np.rint(blocks / scales.astype(np.float32)[..., None]), -8, 7)
    same(layer.unpack(), (codes * scales.astype(np.float32)[..., None]).reshape(W.shape))


@row(
    LAYER, "`save`, `load`", "`layer.save(path, name)`, `onnxq.Linear4Bit.load(path, name)`; `save_layers` for several"
)
def _layer_file() -> None:
    layer = Linear4Bit.quantize(W, 96, np.arange(16))
    with tempfile.TemporaryDirectory() as folder:
        layer.save(Path(folder) / "w.safetensors", "up")
        back = Linear4Bit.load(Path(folder) / "w.safetensors", "up")
    assert back.group == 96
    same(back.unpack(), by_hand(layer.packed, layer.scales, 96))
    same(back.forward(np.zeros(128)), np.arange(16))


@row(LAYER, "the layer in a graph, on GPUs too", "`onnxq import-weights [model.onnx] w.safetensors --accuracy-level 0`")
def _layer_in_a_graph() -> None:
    layer = Linear4Bit.quantize(W, 48)
    with tempfile.TemporaryDirectory() as folder:
        layer.save(Path(folder) / "w.npz")
        exact = ImportOptions(accuracy_level=0)
        path = import_weights(
            None, Path(folder) / "w.npz", Path(folder) / "w.onnx", target="onnxq", options=exact
        ).output
        (y,) = Session(path).run({"x": W})
    wanted = W.astype(np.float64) @ by_hand(layer.packed, layer.scales, 48).T
    assert np.linalg.norm(y - wanted) <= 1e-6 * np.linalg.norm(wanted)


def page() -> str:
    parts = [HEAD]
    for group in dict.fromkeys(each[0] for each in ROWS):
        lines = [f"| {theirs} | {ours} |" for of, theirs, ours, _ in ROWS if of == group]
        parts.append(f"\n## {group[0].upper()}{group[1:]}\n\n| theirs | here |\n|---|---|\n" + "\n".join(lines) + "\n")
    return "".join(parts)


CHECKS = [(f"{group}: {theirs}", check) for group, theirs, _, check in ROWS if check is not None]


@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[name for name, _ in CHECKS])
def test_a_row_is_the_formula(check: Callable[[], None]) -> None:
    check()


def test_the_page_is_made_of_the_rows() -> None:
    assert PAGE.read_text() == page()


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page())

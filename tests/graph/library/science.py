"""Rows of scientific quantization methods: grids, errors, sweeps, theory."""

from __future__ import annotations

import numpy as np
from library.rows import W, row, same

from onnxq import Recipe, analysis, fake_quant, formats
from onnxq.formats import Granularity
from onnxq.model.weights import Role

GROUP = "scientific quantization methods"


@row(GROUP, "uniform quantization over [min, max]", '`formats.quantize(w, "uniform4")`')
def _uniform() -> None:
    w = np.random.default_rng(2).uniform(2, 5, (4, 50)).astype(np.float32)
    q = formats.quantize(w, "uniform4", Granularity())
    step = (np.float64(w.max()) - w.min()) / 15
    same(q.dequantize(), np.rint((w - np.float64(w.min())) / step) * step + w.min(), 1e-5)


@row(GROUP, "symmetric quantization, per tensor or channel", '`formats.quantize(w, "int8", Granularity(0))`')
def _symmetric() -> None:
    q, scale = formats.quantize(W, "int8", Granularity(0)), np.abs(W).max(axis=1) / np.float32(127)
    same(q.codes, np.clip(np.rint(W / scale[:, None]), -127, 127))
    same(q.scales, scale, 1e-7)


@row(GROUP, "affine (asymmetric) quantization", '`formats.quantize(w, "uint8", Granularity())`')
def _affine() -> None:
    q = formats.quantize(W, "uint8", Granularity())
    scale = np.float32((np.float64(W.max()) - W.min()) / 255)
    zero = np.rint(-np.float64(W.min()) / scale)
    same(q.codes, np.clip(np.rint(W / scale) + zero, 0, 255))
    assert (float(np.asarray(q.scales)), float(np.asarray(q.zero_points))) == (scale, zero)


@row(GROUP, "power-of-two scales", '`formats.quantize(w, "pow2_int4")`')
def _pow2() -> None:
    q = formats.quantize(W, "pow2_int4", Granularity())
    lower = np.floor(np.log2(np.abs(W).max() / 7))
    errors = {s: np.square(np.clip(np.rint(W / s), -7, 7) * s - W).sum() for s in 2.0 ** np.array([lower, lower + 1])}
    assert float(np.asarray(q.scales)) == min(errors, key=lambda s: errors[s])


@row(GROUP, "theoretical error and SQNR", "`analysis.theory`")
def _theory() -> None:
    assert analysis.theory.max_error(0.5) == 0.25 and analysis.theory.noise_power(0.5) == 0.25 / 12
    same(analysis.theory.sine_sqnr(8), 6.02 * 8 + 1.76, 1e-3)


@row(GROUP, "MSE, SQNR, cosine, largest error", "`analysis.error_stats(a, b)`, `analysis.tensor_error(w, word)`")
def _errors() -> None:
    got = formats.quantize(W, "int4").dequantize()
    stats, e = analysis.error_stats(W, got), (got - W).astype(np.float64)
    same([stats.mse, stats.max_abs, stats.bias], [np.mean(e**2), np.abs(e).max(), e.mean()], 1e-9)
    same(stats.sqnr, 10 * np.log10(np.sum(W.astype(np.float64) ** 2) / np.sum(e**2)), 1e-9)
    same(stats.cosine, np.sum(W * got) / np.linalg.norm(W) / np.linalg.norm(got), 1e-6)


@row(GROUP, "sensitivity to the scale, best scale", "`analysis.scale_sweep`, `analysis.best_scale`")
def _sweep() -> None:
    scale = np.float32(np.abs(W).max() / np.float64(127))
    for point in analysis.scale_sweep(W, "int8", factors=(0.5, 1.0, 2.0)):
        s = scale * np.float32(point.factor)
        same(point.stats.mse, np.mean((np.clip(np.rint(W / s), -127, 127) * s - W) ** 2), 1e-5)


@row(GROUP, "impact of outliers", "`analysis.outlier_impact`")
def _outliers() -> None:
    found = analysis.outlier_impact(W, "int8", percent=1)
    assert found.threshold == np.sort(np.abs(W).reshape(-1))[-round(W.size / 100)]


@row(GROUP, "comparison of bit widths", "`analysis.compare_bit_widths`")
def _widths() -> None:
    for bits, stats in analysis.compare_bit_widths(W, (3, 6)).items():
        s = np.float32(np.abs(W).max() / np.float64(2 ** (bits - 1) - 1))
        same(stats.mse, np.mean((np.rint(W / s) * s - W) ** 2), 1e-5)


@row(GROUP, "comparison of granularities", "`analysis.compare_granularities`; `onnxq analyze -g tensor -g channel`")
def _granularities() -> None:
    found = analysis.compare_granularities(W, "int8", Role(0, 0, 1))
    same(found["channel"].mse, analysis.tensor_error(W, "int8", Granularity(0)).mse)


@row(GROUP, "accuracy retention", "`analysis.retention`")
def _retention() -> None:
    same(analysis.retention(0.8, 0.6), 75.0, 1e-12)


@row(GROUP, "errors within half a step", "`analysis.error_within_bounds(a, b, step)`")
def _bounds() -> None:
    q = formats.quantize(W, "int8", Granularity(0))
    got, steps = q.dequantize(), np.asarray(q.scales)[:, None]
    for step in (steps, steps * 0.9):
        wanted = np.abs(got - W).max(axis=1, keepdims=True) <= step / 2
        assert analysis.error_within_bounds(W, got, step) == wanted.all()


@row(GROUP, "quality score, best by MSE", "`analysis.quality_score`, `compare_formats`, `best_by_mse`")
def _score() -> None:
    found = analysis.compare_formats(W, ("int4", "uint4", "nf4"))
    errors = {word: np.mean((formats.quantize(W, word).dequantize() - W) ** 2) for word in found}
    assert analysis.best_by_mse(found) == min(errors, key=lambda word: errors[word])
    same(analysis.quality_score(found["nf4"]), 100 * (1 - np.sqrt(errors["nf4"] / np.mean(W**2))), 1e-4)


@row(GROUP, "compression ratio", "`analysis.compression_ratio(q)`")
def _ratio() -> None:
    same(analysis.compression_ratio(formats.quantize(W, "int4")), 32 / (4 + 32 / 32))


@row(GROUP, "coefficient of scale sensitivity", "`analysis.scale_sensitivity(scale_sweep(w, word))`")
def _sensitivity() -> None:
    points = analysis.scale_sweep(W, "int8", factors=(0.5, 1.0, 2.0))
    errors = [point.stats.mse for point in points]
    same(analysis.scale_sensitivity(points), np.std(errors) / np.mean(errors), 1e-12)


@row(GROUP, "outlier rate at a threshold", "`analysis.outlier_rate(w, threshold)`")
def _rate() -> None:
    same(analysis.outlier_rate(W, 2), np.mean(np.abs(W - W.mean()) > 2 * W.std()))


@row(GROUP, "affine over [min, max] itself", "`fake_quant.fit(x, bits, symmetric=False, widen=False)`")
def _unwidened() -> None:
    x = np.random.default_rng(2).uniform(2, 5, (4, 50)).astype(np.float32)
    grid = fake_quant.fit(x, 4, symmetric=False, widen=False)
    s = np.float32((np.float64(x.max()) - x.min()) / 15)
    z = np.rint(-np.float64(x.min()) / s)
    same(fake_quant.forward(x, grid), (np.clip(np.rint(x / s) + z, 0, 15) - z) * s, 1e-6)


@row(GROUP, "power-of-two scales over [min, max]", "`fake_quant.fit(x, bits, powers_of_two=True)`")
def _pow2_range() -> None:
    grid = fake_quant.fit(W, 5, symmetric=False, widen=False, powers_of_two=True)
    same(grid.scale, 2.0 ** np.ceil(np.log2((np.float64(W.max()) - W.min()) / 31)))


@row(GROUP, "per tensor, per channel, in blocks; symmetric, affine", "`onnxq quantize -g tensor --affine`; `Recipe`")
def _forms() -> None:
    recipe = Recipe("w4a16", granularity="tensor", symmetric=False)  # test_granularity.py: what the files compute
    assert (recipe.granularity, recipe.symmetric) == ("tensor", False)

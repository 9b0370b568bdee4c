"""Error statistics against closed forms and theory."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from looped import looped
from numpy.typing import NDArray

from onnxq import analysis, formats
from onnxq.analysis import granularities, synthetic, theory
from onnxq.analysis.representable import levels_range
from onnxq.analysis.slices import slices
from onnxq.analysis.statistics import ErrorSums
from onnxq.analysis.tensor import quantized
from onnxq.encoding import lazy
from onnxq.encoding.lazy import Encoding
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import Granularity
from onnxq.model.weights import Role
from onnxq.quality import MAX_DB, UNEQUAL_DB, decibel

ROLE = Role(1, channel=0, contraction=1)
UNIFORM = synthetic.uniform((512, 512), 0)
GAUSSIAN = synthetic.gaussian((256, 1024), 0)


def test_the_figures_are_their_definitions() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((37, 41)), rng.standard_normal((37, 41))
    s, e = analysis.error_stats(x, y), y - x
    assert s.count == x.size
    assert s.mse == pytest.approx(np.mean(e**2))
    assert s.rmse == pytest.approx(np.sqrt(np.mean(e**2)))
    assert s.mean_abs == pytest.approx(np.mean(np.abs(e)))
    assert s.max_abs == np.abs(e).max()
    assert s.bias == pytest.approx(np.mean(e))
    assert s.sqnr == pytest.approx(10 * np.log10(np.sum(x**2) / np.sum(e**2)))
    assert s.cosine == pytest.approx(np.corrcoef(np.r_[x.ravel(), -x.ravel()], np.r_[y.ravel(), -y.ravel()])[0, 1])


@pytest.mark.parametrize(
    ("wanted", "got", "sqnr", "cosine"),
    [
        ([3.0, 4.0], [3.0, 4.0], MAX_DB, 1.0),
        ([3.0, 4.0], [0.0, 0.0], 0.0, 0.0),
        ([3.0, 4.0], [-3.0, -4.0], -10 * math.log10(4), -1.0),
        ([0.0, 0.0], [0.0, 0.0], MAX_DB, 1.0),
        ([0.0, 0.0], [1.0, 0.0], -MAX_DB, 0.0),
        ([1e150, 0.0], [1e150, 1e145], 100.0, 1.0),
        ([], [], MAX_DB, 1.0),
    ],
    ids=["equal", "lost", "opposite", "zeros", "noise-on-nothing", "huge", "empty"],
)
def test_figures_at_the_edge(wanted: list[float], got: list[float], sqnr: float, cosine: float) -> None:
    s = analysis.error_stats(np.array(wanted), np.array(got))
    assert (s.sqnr, s.cosine) == (pytest.approx(sqnr), pytest.approx(cosine))


@given(arrays.arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e3, 1e3, width=32)), st.integers(0, 200))
def test_sums_of_pieces_are_sums_of_the_whole(x: NDArray, cut: int) -> None:
    """Whatever the cut, by `add` and by `merge`; and neither sign nor order matter."""
    y = np.round(x)
    whole, first, second = ErrorSums(), ErrorSums(), ErrorSums()
    whole.add(x, y)
    first.add(x[:cut], y[:cut])
    second.add(-x[cut:][::-1], -y[cut:][::-1])
    first.merge(second)
    a, b = whole.stats(), first.stats()
    for name in ("count", "mse", "mean_abs", "max_abs", "sqnr", "cosine"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-12), name
    assert -1 <= a.cosine <= 1
    assert a.mean_abs <= a.rmse * (1 + 1e-9) <= a.max_abs * (1 + 1e-6) + 1e-12


def test_shapes_must_be_equal() -> None:
    with pytest.raises(ValueError, match="differ"):
        analysis.error_stats(np.zeros((2, 3)), np.zeros((3, 2)))


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_uniform_data_reach_what_theory_says(bits: int, symmetric: bool) -> None:
    """Within 0.2 dB; and no error is larger than half a step."""
    s = analysis.compare_bit_widths(UNIFORM, [bits], symmetric=symmetric)[bits]
    levels = 2**bits - 1 if symmetric else 2**bits
    assert s.sqnr == pytest.approx(theory.levels_sqnr(levels), abs=0.2)
    step = 2 / (levels - 1)
    assert s.mse == pytest.approx(theory.noise_power(step), rel=0.02)
    assert s.max_abs == pytest.approx(theory.max_error(step), rel=0.02)


@pytest.mark.parametrize("word", [w for w in formats.names() if w in ("int8", "uint8", "int4", "uint4")])
def test_the_formats_reach_what_theory_says(word: str) -> None:
    """The integer formats themselves, with their own fit: the number of levels is read off their codes."""
    format = formats.get(word)
    levels = len(np.unique(format.encode(UNIFORM, Granularity()).codes))
    assert levels >= 2**format.bits - 1
    assert analysis.tensor_error(UNIFORM, word).sqnr == pytest.approx(theory.levels_sqnr(levels), abs=0.2)


@pytest.mark.parametrize("bits", range(7, 15))
def test_a_full_scale_sine_reaches_six_decibels_a_bit(bits: int) -> None:
    """In 2^b steps over its range. A sine dwells at its ends: with fewer bits it is up to a decibel below theory."""
    x = np.sin(np.linspace(0, 2 * np.pi, 1_000_003))
    step = 2 / 2**bits
    y = (np.floor(x / step) + 0.5) * step
    assert analysis.error_stats(x, y).sqnr == pytest.approx(theory.sine_sqnr(bits), abs=0.2)
    assert theory.effective_bits(theory.sine_sqnr(bits)) == pytest.approx(bits)


def test_the_textbook_s_constants() -> None:
    assert theory.sine_sqnr(8) == pytest.approx(6.02 * 8 + 1.76, abs=0.01)
    assert theory.uniform_sqnr(8) == pytest.approx(6.02 * 8, abs=0.01)
    assert theory.levels_sqnr(2**16) == pytest.approx(theory.uniform_sqnr(16), abs=0.001)
    with pytest.raises(ValueError):
        theory.levels_sqnr(1)


def test_more_bits_are_better_by_six_decibels() -> None:
    found = [s.sqnr for s in analysis.compare_bit_widths(GAUSSIAN, range(4, 9), axis=0).values()]
    np.testing.assert_allclose(np.diff(found), 6.02, atol=0.7)


@pytest.mark.parametrize("word", formats.names())
@pytest.mark.parametrize("way", granularities.WORDS)
def test_every_format_has_figures(word: str, way: str) -> None:
    own = granularities.taken(word, way)
    if own is None:
        pytest.skip(f"{word} has no {way} granularity")
    w = GAUSSIAN[:32]
    s = analysis.tensor_error(w, word, granularities.parse(own, ROLE))
    assert 0 < s.sqnr <= MAX_DB  # 2 bits with one scale for all are next to nothing
    assert 0.3 < s.cosine <= 1
    assert 0 < s.levels_used <= 1
    assert s.clipped < (0.3 if word == "ternary" else 0.05)  # beyond one and a half times the mean magnitude
    assert formats.get(word).bits <= s.bits_per_weight < formats.get(word).bits + 4
    assert s.count == w.size


def test_nf4_beats_evenly_spaced_levels_on_gaussian_weights() -> None:
    """Against 15 symmetric levels, the same block and the same bits per weight: by a decibel, as its paper promises."""
    blocks = GAUSSIAN.reshape(-1, 64)
    even = analysis.compare_bit_widths(blocks, [4], axis=0)[4].sqnr
    nf4 = analysis.tensor_error(blocks, "nf4", Granularity(1, 64)).sqnr
    assert 0.8 < nf4 - even < 1.6
    for lead in analysis.leads("nf4"):
        if formats.get(lead.other).stored_scales is not None:
            continue  # of which blocks in rows of their own make other super blocks
        other = analysis.tensor_error(blocks, lead.other, Granularity(1, 64)).sqnr
        assert lead.decibel == pytest.approx(nf4 - other, abs=0.01)
        assert (lead.granularity, lead.bits_per_weight) == ("block64", 4.5)
        if lead.other == "int4":
            assert lead.decibel > 0


def test_clipped_weights_are_counted() -> None:
    """With scales of half the size, half of a uniform weight's numbers are clipped, less half a step on each side."""
    (point,) = analysis.scale_sweep(UNIFORM, "int8", factors=[0.5])
    assert point.stats.clipped == pytest.approx(0.5 - 0.5 / 254, abs=0.003)
    (point,) = analysis.scale_sweep(UNIFORM, "int8", factors=[1.0])
    assert point.stats.clipped == 0
    assert point.stats == analysis.tensor_error(UNIFORM, "int8")


def test_clipped_are_those_whose_code_is_out_of_range() -> None:
    """Rounding an affine zero point leaves ends half a step outside, which is rounding and not clipping."""
    w, how = synthetic.gaussian((64, 320), 5), Granularity(1, 32)
    q = formats.get("uint4").encode(w, how)
    for factor, least in ((1.0, 0.0), (0.7, 0.01)):
        assert q.scales is not None
        assert q.zero_points is not None
        scales = q.scales * np.float32(factor)
        code = np.rint(w / how.spread(scales, w.shape)) + how.spread(q.zero_points, w.shape).astype(np.float32)
        (point,) = analysis.scale_sweep(w, "uint4", how, [factor])
        share = np.mean((code < 0) | (code > 15))
        assert point.stats.clipped == pytest.approx(share, abs=2 / w.size)
        assert share >= least


def test_the_levels_of_several_weights_are_counted_once() -> None:
    low, high = (np.array([0, 1, end], np.float32) for end in (2, -2))
    sums = [ErrorSums() for _ in range(3)]
    for each, w in zip(sums[:2], (low, high), strict=True):
        each.add_quantized(w, formats.get("int8").encode(w, Granularity()))
    for each in sums[:2]:
        sums[2].merge(each)
    assert [each.stats().levels_used * 256 for each in sums] == [3, 3, 4]
    assert sums[2].stats().bits_per_weight == pytest.approx((2 * (3 + 4)) * 8 / 6)


@pytest.mark.parametrize("granularity", [Granularity(), Granularity(0), Granularity(1, 48)], ids=granularities.word_of)
@pytest.mark.parametrize("word", [w for w in formats.names() if granularities.taken(w, "block48") == "block48"])
def test_the_range_of_a_group_is_that_of_its_codes(word: str, granularity: Granularity) -> None:
    """All codes of the format decoded with the scales of each group, and not one number beyond what was found."""
    w = synthetic.gaussian((4, 100), 1)
    format = formats.get(word)
    if granularities.taken(word, granularities.word_of(granularity)) is None:
        pytest.skip(f"{word} has no such granularity")
    q = format.encode(w, granularity)
    found = levels_range(q)
    assert found is not None
    low, high = (granularity.spread(x, w.shape) for x in found)
    format = format.base or format  # double quantization would change the scales again
    y = format.encode(w * 100, granularity, q.scales, q.zero_points).dequantize()
    assert ((y == low) | (y == high)).mean() > 0.9
    assert (y >= low).all() and (y <= high).all()


def test_used_levels_are_counted() -> None:
    w = np.repeat(np.array([-1, 0, 0.5, 1], np.float32), 64)
    assert analysis.tensor_error(w, "int8").levels_used == pytest.approx(4 / 256)
    assert analysis.tensor_error(UNIFORM, "uint4").levels_used == 1


@pytest.mark.parametrize("word", ["int8", "nf4"])
def test_the_own_scale_is_near_the_best(word: str) -> None:
    """The error grows both ways, faster where numbers are clipped."""
    points = analysis.scale_sweep(GAUSSIAN, word, Granularity(1, 64))
    best = analysis.best_scale(points)
    errors = {point.factor: point.stats.mse for point in points}
    assert 0.8 <= best.factor <= 1.1
    assert errors[0.5] > errors[1.5] > errors[best.factor]


def test_casts_have_no_scale_to_sweep() -> None:
    with pytest.raises(BadRecipe, match="float16 has no scales"):
        analysis.scale_sweep(UNIFORM, "float16")


def test_outliers_cost_all_others() -> None:
    """One scale for all: 20 standard deviations against some 4 make the steps 5 times as wide, 13 dB."""
    w = synthetic.outliers((256, 1024), 0)
    found = analysis.outlier_impact(w, "int8", percent=100 * synthetic.OUTLIERS)
    assert found.threshold == synthetic.OUTLIER_SIZE
    alone = np.abs(w[np.abs(w) < synthetic.OUTLIER_SIZE]).max()
    assert found.cost == pytest.approx(20 * math.log10(synthetic.OUTLIER_SIZE / alone), abs=0.3)
    assert found.rest.count == w.size - round(w.size * synthetic.OUTLIERS)
    blocks = analysis.outlier_impact(w, "int8", Granularity(1, 32), percent=100 * synthetic.OUTLIERS)
    assert 0 < blocks.cost < found.cost
    none = analysis.outlier_impact(UNIFORM, "int8", percent=0.1)
    assert abs(none.cost) < 0.1


@pytest.mark.parametrize("percent", [0, 100, -1])
def test_outliers_must_leave_something(percent: float) -> None:
    with pytest.raises(ValueError):
        analysis.outlier_impact(UNIFORM, "int8", percent=percent)


def test_finer_granularities_are_better() -> None:
    w = synthetic.channels((128, 512), 0)
    found = analysis.compare_granularities(w, "int8", ROLE)
    assert list(found) == list(granularities.WORDS)
    sqnr = [found[word].sqnr for word in ("tensor", "channel", "block128", "block32")]
    assert sqnr == sorted(sqnr)
    assert sqnr[1] - sqnr[0] > 1
    bits = [found[word].bits_per_weight for word in ("tensor", "channel", "block128", "block32")]
    assert bits == sorted(bits)
    assert len(analysis.compare_granularities(w, "float16", ROLE)) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("word", formats.names())
@looped("way", granularities.WORDS)
@looped("shape", [(40, 96), (200, 10), (7, 130), (3, 5, 64), (4000,)])
def test_slices_make_no_difference(
    word: str, way: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight cut into small slices, of any float type and rank, has the figures of the whole."""
    own = granularities.taken(word, way)
    if own is None:
        return
    role = Role(1, 0, len(shape) - 1)
    granularity, w = granularities.parse(own, role), np.random.default_rng(0).standard_normal(shape)
    if granularity.axis is not None and granularity.block is None and len(shape) == 1:
        return  # one scale for each number
    tensor = ir.tensor(w.astype(ml_dtypes.bfloat16), name="w")
    whole = analysis.tensor_error(tensor, word, granularity)
    rounded = quantized(tensor, formats.get(word), granularity)
    monkeypatch.setattr(lazy, "SLICE_ELEMENTS", 600)
    parts = list(slices(Encoding(tensor, formats.get(word), granularity).result()))
    assert len(parts) > 1
    assert max(part.codes.size for _, part in parts) <= max(600, *shape)
    cut = analysis.tensor_error(tensor, word, granularity)
    for name in ("count", "max_abs", "clipped", "levels_used"):
        assert getattr(cut, name) == getattr(whole, name), name
    assert cut.sqnr == pytest.approx(whole.sqnr, abs=1e-9)
    np.testing.assert_array_equal(quantized(tensor, formats.get(word), granularity), rounded)
    assert rounded.dtype == tensor.dtype.numpy()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_weights_that_are_no_numbers_are_refused(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "SLICE_ELEMENTS", 60)
    w = np.zeros((20, 30))
    w[17, 4] = bad
    with pytest.raises(BadModel, match=r"weight 'up' holds .* at \[17, 4\]"):
        analysis.tensor_error(ir.tensor(w, name="up"), "int8", Granularity(0))


def test_makers_make_what_they_say() -> None:
    shape = (64, 4096)
    for make in synthetic.MAKERS.values():
        w = make(shape, 3)
        assert (w.shape, w.dtype) == (shape, np.float32)
        np.testing.assert_array_equal(w, make(shape, 3))
        assert not np.array_equal(w, make(shape, 4))
    assert synthetic.gaussian(shape, 0).std() == pytest.approx(1, abs=0.01)
    assert abs(synthetic.uniform(shape, 0)).max() <= 1
    spreads = np.sort(synthetic.channels(shape, 0).std(axis=1))
    assert spreads[-1] / spreads[0] == pytest.approx(10**synthetic.DECADES, rel=0.1)
    large = np.abs(synthetic.outliers(shape, 0)) == synthetic.OUTLIER_SIZE
    assert large.sum() == round(synthetic.OUTLIERS * 64 * 4096)


def test_retention() -> None:
    assert analysis.retention(0.8, 0.6) == pytest.approx(75)
    assert analysis.retention(2.0, 2.5, higher_is_better=False) == pytest.approx(80)
    with pytest.raises(ValueError, match="above zero"):
        analysis.retention(0.0, 0.5)


def test_decibels_hold_where_ratios_overflow() -> None:
    assert decibel(1e300, 1e-300) == UNEQUAL_DB
    assert decibel(1e300, 1e299) == pytest.approx(10)
    assert decibel(1.0, math.inf) == decibel(0.0, 1.0) == -MAX_DB


@pytest.mark.parametrize("word", ["row", "block", "block0", "block-1", "blocks32"])
def test_unknown_granularities(word: str) -> None:
    with pytest.raises(BadRecipe, match=f"unknown granularity '{word}'"):
        granularities.parse(word, ROLE)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e307])
def test_numbers_whose_squares_no_float_holds_have_an_error_too(scale: float) -> None:
    x, y = np.array([1.0, 2.0, -3.0]), np.array([1.25, 2.0, -2.5])
    usual, found = analysis.error_stats(x, y), analysis.error_stats(x * scale, y * scale)
    assert found.sqnr == pytest.approx(usual.sqnr)
    assert found.cosine == pytest.approx(usual.cosine)
    assert (found.mean_abs, found.max_abs) == pytest.approx((usual.mean_abs * scale, usual.max_abs * scale), rel=1e-9)
    assert analysis.error_stats(x * scale, -x * scale).cosine == pytest.approx(-1)


@pytest.mark.parametrize("large", [1e139, 1e200, 1e300])
def test_errors_are_summed_apart_from_the_numbers(large: float) -> None:
    """Of numbers whose squares no float holds, an error of 1 has a square all the same."""
    found = analysis.error_stats([large, 1.0], [large, 2.0])
    assert (found.mse, found.max_abs, found.mean_abs) == (0.5, 1.0, 0.5)

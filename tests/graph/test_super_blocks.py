"""Formats of two levels: bytes that the gguf package decodes to the same bits, and codes that suit what is stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from tiny import sqnr

from onnxq import formats, layouts
from onnxq.encoding.lazy import Encoding
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds.super_blocks import Short, StoredScales

W = np.random.default_rng(0).standard_t(4, (3, 5, 512)).astype(np.float32)
WORDS = [word for word in formats.names() if formats.get(word).stored_scales is not None]
SUPER = [word for word in formats.names() if (name := formats.get(word).gguf) and ("_K" in name or "TQ" in name)]
two_levels = pytest.mark.parametrize("word", WORDS)
every_super_block = pytest.mark.parametrize("word", SUPER)


def stored(q: QuantizedTensor) -> StoredScales:
    assert isinstance(q.nested, StoredScales)
    return q.nested


@every_super_block
def test_the_gguf_package_decodes_the_same_bits(word: str) -> None:
    gguf = pytest.importorskip("gguf")
    q = formats.quantize(W, word)
    raw = layouts.gguf(q)
    kind = gguf.GGMLQuantizationType[q.format.gguf]
    assert raw.shape == (15, 2 * gguf.GGML_QUANT_SIZES[kind][1])
    np.testing.assert_array_equal(gguf.quants.dequantize(raw, kind).reshape(W.shape), q.dequantize())
    if q.format.stored_scales is None:
        # Of ternary blocks the package has the encoder too.
        np.testing.assert_array_equal(gguf.quants.quantize(W.reshape(15, 512), kind), raw)


@every_super_block
@pytest.mark.parametrize("seed", range(8))
def test_any_bytes_at_all_mean_what_they_mean_to_the_gguf_package(word: str, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    format = formats.get(word)
    raw = np.random.default_rng(seed).integers(0, 256, (4, layouts.gguf_nbytes(format, 256)), dtype=np.uint8)
    q = layouts.from_gguf(format, raw.reshape(-1), (4, 256))
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[format.gguf])
        ours = q.dequantize()
    np.testing.assert_array_equal(ours, theirs)  # NaN is equal to NaN
    # Some bytes of TQ1_0 stand for no five digits; those that are written do.
    np.testing.assert_array_equal(layouts.from_gguf(format, layouts.gguf(q).reshape(-1), (4, 256)).codes, q.codes)


@every_super_block
def test_gguf_holds_whole_super_blocks_only(word: str) -> None:
    with pytest.raises(BadModel, match="rows of whole blocks of 256"):
        layouts.gguf(formats.quantize(W[..., :320], word))
    with pytest.raises(ValueError, match="rows of whole blocks of 256"):
        layouts.from_gguf(formats.get(word), np.zeros(0, np.uint8), (2, 320))


@two_levels
@pytest.mark.parametrize("shape", [(3, 5, 512), (2, 300), (37,), (0, 256), (4, 0)], ids=str)
def test_codes_are_those_of_the_scales_that_are_stored(word: str, shape: tuple[int, ...]) -> None:
    w = np.resize(W, shape).astype(np.float32)
    q = formats.quantize(w, word)
    scales, minima = stored(q).values
    np.testing.assert_array_equal(q.scales, scales)
    assert (minima is None) == (q.zero_points is None)
    base = q.format.base
    assert base is not None
    again = base.encode(w, q.granularity, scales, minima)
    np.testing.assert_array_equal(again.codes, q.codes)
    np.testing.assert_array_equal(again.dequantize(), q.dequantize())


@two_levels
def test_stored_scales_are_the_nearest_to_those_wanted(word: str) -> None:
    q = formats.quantize(W, word)
    wanted = q.format.fit(W, q.granularity)
    for kept, exact in zip((stored(q).scales, stored(q).minima), wanted, strict=True):
        if kept is None or exact is None:
            continue
        if isinstance(kept.format, Short):
            assert kept.scales is not None
            step = np.abs(kept.granularity.spread(kept.scales.astype(np.float64), kept.shape))
            # The factor, rounded to float16, moves the outermost code by 2^-11 of itself.
            slack = step / 2 + np.abs(exact) * 2.0**-10
        else:
            slack = np.abs(exact) / 16 + np.abs(exact).max() * 2.0**-18  # E4M3: three bits behind the point
        assert (np.abs(kept.dequantize() - exact) <= slack).all()


@pytest.mark.parametrize(
    ("word", "plain", "block"),
    [("q2_k", "uint2", 32), ("q3_k", "int3", 32), ("q4_k", "q4_1", 32), ("q5_k", "q5_1", 32), ("nvfp4", "mxfp4", 32)],
)
def test_two_levels_are_worth_it(word: str, plain: str, block: int) -> None:
    """More accurate than a format of one level that takes as many bits or more, or (nvfp4) has longer blocks."""
    q, other = formats.quantize(W, word), formats.quantize(W, plain, Granularity(2, block))
    assert q.bits_per_weight <= other.bits_per_weight + 0.26
    assert sqnr(W, q.dequantize()) > sqnr(W, other.dequantize()) + 0.3


@two_levels
def test_least_squares_find_no_worse_scales_than_the_extremes(word: str) -> None:
    format, blocks = formats.get(word), Granularity(2, formats.get(word).default_block)
    base = format.base
    assert base is not None
    found = base.encode(W, blocks)
    assert found.scales is not None
    for factor in (0.9, 1.0, 1.1):
        other = base.encode(W, blocks, found.scales * np.float32(factor), found.zero_points)
        if word != "nvfp4":  # whose scales put the largest magnitude on the largest level
            assert sqnr(W, found.dequantize()) >= sqnr(W, other.dequantize())


@two_levels
@pytest.mark.parametrize("algorithm", ["rtn", "mse"])
def test_in_slices_as_in_one_piece(word: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    granularity = Granularity(2, formats.get(word).default_block)
    encoding = Encoding(ir.tensor(W), formats.get(word), granularity, algorithm=algorithm)
    whole = encoding.result()
    monkeypatch.setattr("onnxq.encoding.lazy.SLICE_ELEMENTS", 600)
    cut = Encoding(ir.tensor(W.copy()), formats.get(word), granularity, algorithm=algorithm).result()
    np.testing.assert_array_equal(cut.codes, whole.codes)
    np.testing.assert_array_equal(cut.dequantize(), whole.dequantize())
    assert whole.nbytes == cut.nbytes == sum(part.nbytes for part in layouts.compact(whole).values())


@pytest.mark.parametrize(("value", "word"), [(0.0, "q4_k"), (1e-12, "q3_k"), (0.0, "nvfp4"), (0.0, "tq2_0")])
def test_nothing_stays_nothing(value: float, word: str) -> None:
    assert not formats.quantize(np.full((2, 256), value, np.float32), word).dequantize().any()


def test_nvfp4_has_one_factor_for_the_whole_weight() -> None:
    q = formats.quantize(W, "nvfp4")
    factor = stored(q).scales.scales
    assert factor is not None and factor.shape == ()
    assert q.bits_per_weight == pytest.approx(4 + 8 / 16 + 32 / W.size)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 1.0, 448.0, 6 * 448.0, 1e30])
def test_scales_of_nvfp4_are_the_same_in_half_as_many_bits(magnitude: float) -> None:
    """A factor that is a power of two, and not one more than it takes: E4M3 has four bits, and keeps them."""
    q = formats.quantize(W * np.float32(magnitude / np.abs(W).max()), "nvfp4")
    nested = stored(q).scales
    codes, scales = nested.codes.astype(np.float32), nested.dequantize()
    assert np.frexp(np.asarray(nested.scales))[0] == 0.5 and 224 < codes.max() <= 448
    assert q.scales is not None
    np.testing.assert_array_equal(scales.astype(ml_dtypes.bfloat16).astype(np.float32), scales)
    np.testing.assert_array_equal(codes / (np.float32(1) / np.asarray(nested.scales)), scales)
    if 1e-3 <= magnitude < 1e5:
        np.testing.assert_array_equal(scales.astype(np.float16).astype(np.float32), scales)


def test_ternary_is_the_mean_magnitude() -> None:
    """By hand: the mean of 0.2, 0.4, 0.6 and 2.8 is 1."""
    q = formats.quantize(np.array([[0.2, -0.4, 0.6, -2.8]], np.float32), "ternary", Granularity())
    assert (float(q.scales), q.codes.tolist()) == (pytest.approx(1), [[0, 0, 1, -1]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="codes of ternary are integers from -1 to 1"):
        formats.values([-2], "ternary")

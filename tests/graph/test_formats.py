"""What single formats promise, besides the laws of all (test_format_laws.py)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from looped import looped
from numpy.typing import NDArray
from tiny import sqnr

from onnxq import formats
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.formats.kinds import affine as _affine
from onnxq.formats.kinds.nested import NestedScales
from onnxq.formats.kinds.super_blocks import StoredScales

EPS = float(np.finfo(np.float32).eps)

every_format = pytest.mark.parametrize("name", formats.names())
WITH_SCALES = [n for n in formats.names() if formats.get(n).scale_type is not None]
with_scales = pytest.mark.parametrize("name", WITH_SCALES)
granularities = looped(
    "shape, granularity",
    [
        ((5, 7), Granularity()),
        ((5, 7), Granularity(0)),
        ((5, 7), Granularity(1)),
        ((4, 64), Granularity(1, 16)),
        ((4, 37), Granularity(1, 16)),
        ((37, 4), Granularity(0, 16)),
        ((3, 20, 2), Granularity(1, 8)),
        ((3, 4, 2, 2), Granularity(1)),
        ((70,), Granularity(0, 64)),
        ((1,), Granularity()),
        ((3, 1), Granularity(1, 16)),
    ],
)


def normal(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def codes_of(format: Format) -> NDArray:
    """Every code the format has."""
    if format.code_type.name.startswith("float8"):
        codes = np.arange(256, dtype=np.uint8).view(format.code_type)
        return codes[np.isfinite(codes.astype(np.float32))]
    half = 1 << (format.bits - 1)
    if format.code_type.kind == "i":
        if format.lowest is not None:
            return np.arange(format.lowest, half, dtype=format.code_type)
        is_short = format.name in ("int8", "int8_dq", "int16", "q8_0", "pow2_int4", "pow2_int8")
        return np.arange(-half + is_short, half, dtype=format.code_type)
    return np.arange(2 * half, dtype=format.code_type)


def zero_of(format: Format) -> NDArray | None:
    """Some zero point, or some minimum."""
    if format.name.startswith("uint"):
        return np.array(3, format.code_type)
    return np.array(-1.5, format.offset_type) if format.has_minimum else None


def test_the_folder_is_the_list() -> None:
    assert {"int8", "uint4", "nf4_dq", "q4_0", "mxfp4", "uniform", "pow2_int4", "bfloat16"} <= set(formats.names())
    assert all(formats.get(name).name == name for name in formats.names())


def test_an_unknown_word_lists_the_known_ones() -> None:
    with pytest.raises(
        BadRecipe, match="unknown number format 'int5'; choose one of bfloat16, e2m1, float16, float8_e4m3"
    ):
        formats.get("int5")
    for word in ("", "3", "nf42", "uniform-3"):
        with pytest.raises(BadRecipe, match="unknown number format"):
            formats.get(word)


def test_a_word_may_end_in_a_parameter() -> None:
    for bits in range(2, 17):
        format = formats.get(f"uniform{bits}")
        assert (format.name, format.bits) == (f"uniform{bits}", bits)
    assert formats.get("uniform").bits == 8
    with pytest.raises(BadRecipe, match="'uniform17': uniform takes 2 to 16 bits, as in uniform2"):
        formats.get("uniform17")


@with_scales
def test_every_code_survives(name: str) -> None:
    format = formats.get(name)
    codes = codes_of(format)
    zeros = zero_of(format)
    q = QuantizedTensor(format, Granularity(), codes, np.array(0.25, format.scale_type), zeros)
    again = (format.base or format).encode(q.dequantize(), Granularity(), q.scales, zeros)
    np.testing.assert_array_equal(again.dequantize(), q.dequantize())


@with_scales
def test_the_nearest_number_is_taken(name: str) -> None:
    format, w = formats.get(name), normal((1, 64))
    # As if stored: the scale of mxfp4 and of GGUF's blocks is rounded after the codes were chosen.
    first = (format.base or format).encode(w, Granularity())
    q = first.format.encode(w, Granularity(), first.scales, first.zero_points)
    codes = codes_of(format)
    numbers = QuantizedTensor(format, Granularity(), codes, q.scales, q.zero_points).dequantize()
    least = np.abs(numbers[:, None] - w.reshape(-1)).min(axis=0)
    np.testing.assert_allclose(np.abs(q.dequantize() - w).reshape(-1), least, atol=4 * EPS * np.abs(w).max())


@pytest.mark.parametrize("name", [n for n in WITH_SCALES if formats.get(n).base is None])
@granularities
def test_a_group_depends_on_its_own_weights_only(name: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    w = normal(shape)
    index = np.arange(int(np.prod(granularity.scale_shape(shape)))).reshape(granularity.scale_shape(shape))
    last = np.broadcast_to(granularity.spread(index, shape), shape) == index.size - 1
    other = np.where(last, w, 100 * w).astype(np.float32)
    one, changed = (formats.get(name).encode(x, granularity) for x in (w, other))
    np.testing.assert_array_equal(one.codes[last], changed.codes[last])
    np.testing.assert_array_equal(one.dequantize()[last], changed.dequantize()[last])


@pytest.mark.parametrize("name", ["nf4", "fp4"])
@pytest.mark.parametrize("granularity", [Granularity(), Granularity(0, 16)], ids=["tensor", "block"])
def test_halfway_between_two_levels_is_the_lower_one(name: str, granularity: Granularity) -> None:
    levels = np.unique(formats.get(name).levels)
    middles = (levels[1:] + levels[:-1]) / np.float32(2)
    w = np.append(middles, np.float32(1))  # the absmax
    decoded = formats.get(name).encode(w[:16], granularity).dequantize()
    np.testing.assert_array_equal(decoded[: len(middles)], levels[:-1])


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_weights_as_far_from_zero(order: int) -> None:
    """int4 puts the negative one on -8, as onnxruntime does; q4_0 the first, as ggml does."""
    w = np.array([[0.25, order, 0.5, -order]], np.float32)
    for axis, x in ((1, w), (0, w.T)):
        int4, q4_0 = (formats.quantize(x, word, Granularity(axis, 32)) for word in ("int4", "q4_0"))
        assert int4.scales is not None and q4_0.scales is not None
        assert int4.scales.item() == 0.125
        assert q4_0.scales.item() == -0.125 * order


@every_format
@looped(
    "shape, granularity",
    [
        ((0,), Granularity()),
        ((3, 0), Granularity(0)),
        ((0, 3), Granularity(0)),
        ((3, 0), Granularity(1, 16)),
        ((0, 32), Granularity(1, 16)),
    ],
)
def test_empty(name: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    q = formats.get(name).encode(np.zeros(shape, np.float32), granularity)
    assert q.dequantize().shape == shape
    if q.scales is not None:
        assert q.scales.shape == granularity.scale_shape(shape)


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_a_cast_keeps_every_number_of_the_short_type(name: str, dtype: type) -> None:
    all_bits = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    numbers = all_bits[np.isfinite(all_bits.astype(np.float32))]
    q = formats.get(name).encode(numbers.astype(np.float32), Granularity())
    np.testing.assert_array_equal(q.codes.view(np.uint16), numbers.view(np.uint16))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_cast_refuses_what_is_not_finite(name: str, bad: float) -> None:
    with pytest.raises(BadModel, match=f"a weight of magnitude .* does not fit {name}; choose a wider type"):
        formats.get(name).encode(np.array([1, bad], np.float32), Granularity())


def test_float16_refuses_what_would_overflow() -> None:
    formats.get("float16").encode(np.array([65519], np.float32), Granularity())
    with pytest.raises(BadModel, match="a weight of magnitude 65520 does not fit float16"):
        formats.get("float16").encode(np.array([65520], np.float32), Granularity())


@pytest.mark.parametrize(("axis", "block"), [(None, 16), (0, 0), (1, -1)])
def test_a_block_needs_an_axis_and_a_size(axis: int | None, block: int) -> None:
    with pytest.raises(ValueError, match="needs an axis"):
        Granularity(axis, block)


@pytest.mark.parametrize("bits", range(2, 9))
def test_noise_of_uniform_data_is_that_of_the_theory(bits: int) -> None:
    """Data spread evenly over the whole range: 20 · log10(levels − 1) dB, steps²/12 against range²/12."""
    w = np.random.default_rng(bits).uniform(-1, 1, 200_000).astype(np.float32)
    theory = 20 * np.log10(2.0**bits - 1)
    assert sqnr(w, formats.get(f"uniform{bits}").encode(w, Granularity()).dequantize()) == pytest.approx(
        theory, abs=0.2
    )
    if bits in (2, 4, 8):
        affine = formats.get(f"uint{bits}").encode(w, Granularity())
        assert sqnr(w, affine.dequantize()) == pytest.approx(theory, abs=0.2)


@pytest.mark.parametrize(("block", "gain"), [(32, 0.6), (64, 0.8), (128, 1.0)])
def test_nf4_beats_int4_on_gaussian_weights(block: int, gain: float) -> None:
    """By `gain` dB against integers of ±7; against those of the sign that uses -8 too, from blocks of 64 on."""
    w = np.random.default_rng(block).standard_normal((512, 1024)).astype(np.float32)
    blocks, int4 = Granularity(1, block), formats.get("int4")
    of_nf4 = sqnr(w, formats.quantize(w, "nf4", blocks).dequantize())
    assert of_nf4 > sqnr(w, int4.encode(w, blocks, _affine.fit_symmetric(w, blocks, 7)).dequantize()) + gain
    if block >= 64:
        assert of_nf4 > sqnr(w, int4.encode(w, blocks).dequantize()) + 0.2


@pytest.mark.parametrize("name", [*formats.names(), "uniform3"])
def test_a_format_says_of_itself_what_it_does(name: str) -> None:
    format = formats.get(name)
    q = formats.quantize(normal((4, 64)), name)
    assert format.name == name
    assert format.offset_type == (None if q.zero_points is None else q.zero_points.dtype)
    assert format.scale_type == (None if q.scales is None else q.scales.dtype)
    assert format.nested_type == (q.nested.codes.dtype if isinstance(q.nested, NestedScales) else None)
    stored = (q.nested.scales, q.nested.minima) if isinstance(q.nested, StoredScales) else (None, None)
    assert (format.stored_scales, format.stored_minima) == tuple(part and part.format for part in stored)
    assert (format.levels is None) == (format.tables is None)
    if format.rule is not None and format.rule.qmax:
        assert format.rule.qmax == (1 << (format.bits - (format.code_type.kind == "i"))) - 1
    if format.kernel is not None:  # a kernel's word is that of a format whose codes mean the same
        decoded = formats.get(format.kernel)
        assert (decoded.kernel, decoded.bits) == (format.kernel, format.bits)
        assert decoded.levels is format.levels
        assert decoded.is_integer == format.is_integer

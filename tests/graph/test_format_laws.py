"""The laws that every number format in the folder keeps, on weights of any shape, type and magnitude.

1. Decoding is a fixed point.              4. Bytes are those of the format's formula, and hold everything.
2. The error of each weight is bounded.    5. Powers of two go through, bit for bit.
3. Zero stays zero.                        6. The same result however the weight is cut.
"""

from __future__ import annotations

import math
from contextlib import suppress
from unittest import mock

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from drawn import drawn
from hypothesis import given
from hypothesis import strategies as st
from looped import looped
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.encoding import lazy
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import gguf
from onnxq.formats.kinds.super_blocks import StoredScales

#: Formats of two levels have laws of their own: test_super_blocks.py.
TWO_LEVELS = [word for word in formats.names() if formats.get(word).stored_scales is not None]
WORDS = [*formats.names(), "uniform2", "uniform3", "uniform5", "uniform11", "uniform16", "nf4_dq3"]
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
EPS = float(np.finfo(np.float32).eps)
SUBNORMAL = float(np.finfo(np.float32).smallest_subnormal)
#: By how many steps a weight beyond the outermost level may be off; half a step where nothing is said. Symmetric codes
#: have one fewer on one side; mxfp4 begins to clip at 6 of 8; powers of two clip when that has the smaller error.
CLIPPED = dict.fromkeys(("int2", "int3", "int4", "int4_dq", "q4_0", "q5_0"), 1)
CLIPPED |= {"ternary": 64, "mxfp4": 2, "pow2_int4": 8, "pow2_int8": 128}
#: The lowest code of two's complement is not used.
SYMMETRIC = ("int8", "int8_dq", "int16", "q8_0", "pow2_int4", "pow2_int8")
#: Their range need not hold a zero.
WITHOUT_ZERO = ("uniform", "q4_1", "q5_1", "q2_k", "q4_k", "q5_k")


@st.composite
def granularities(draw: st.DrawFn, rank: int) -> Granularity:
    axis = draw(st.integers(0, rank - 1))
    blocks = st.sampled_from([1, 3, 16, 32, 64]).map(lambda block: Granularity(axis, block))
    return draw(st.one_of(st.just(Granularity()), st.just(Granularity(axis)), blocks))


@st.composite
def weights(draw: st.DrawFn) -> NDArray:
    """Numbers up to 1e38 of every kind, in every type; now and then none, one, all equal, or all zero."""
    long = st.one_of(st.integers(0, 3), st.sampled_from([31, 32, 33, 64, 70]))
    shape = draw(
        st.one_of(
            st.tuples(long),
            st.tuples(st.integers(0, 4), long),
            st.tuples(long, long),
            st.tuples(*[st.integers(0, 5)] * 3),
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    w = rng.standard_normal(shape)
    kind = draw(st.sampled_from(["normal", "spread", "constant", "zeros", "outlier", "positive", "sparse", "integers"]))
    if kind == "spread":
        w = w * 10.0 ** rng.uniform(-6, 6, shape)
    elif kind == "constant":
        w = np.full(shape, rng.standard_normal())
    elif kind == "zeros":
        w = np.zeros(shape)
    elif kind == "outlier" and w.size:
        w.flat[rng.integers(w.size)] = 1e3
    elif kind == "positive":
        w = np.abs(w) + 1
    elif kind == "sparse":
        w = np.where(rng.random(shape) < 0.7, 0.0, w)
    elif kind == "integers":
        w = rng.integers(-128, 128, shape).astype(float)
    exponent = draw(st.one_of(st.just(0), st.integers(-150, 120), st.sampled_from([-149, -140, -126, -24, -14, 15])))
    dtype = draw(st.sampled_from(DTYPES))
    limit = min(1e38, float(ml_dtypes.finfo(dtype).max))
    return np.clip(w * 2.0**exponent, -limit, limit).astype(dtype)


@pytest.mark.parametrize("word", WORDS)
@drawn(15)
@given(data=st.data())
def test_laws(word: str, data: st.DataObject) -> None:
    weight = data.draw(weights())
    granularity = data.draw(granularities(weight.ndim))
    w = weight.astype(np.float32)
    if may_be_refused(word, w):
        with suppress(BadModel):
            formats.quantize(weight, word, granularity)
        return
    q = formats.quantize(weight, word, granularity)
    shape_and_types(q, w)
    decoding_is_a_fixed_point(q)
    if word not in TWO_LEVELS:
        errors_are_bounded(q, w)
    zero_stays_zero(q, w)
    bytes_are_counted(q)
    cut_or_whole(q, weight)


def may_be_refused(word: str, w: NDArray) -> bool:
    """Whether a number of `w` is beyond what float16 or bfloat16 holds, where the format stores it as one."""
    largest = np.max(np.abs(w), initial=0)
    return largest >= (3.39e38 if word == "bfloat16" else 65520.0) and (
        word in ("float16", "bfloat16") or has_half_scales(word)
    )


def has_half_scales(word: str) -> bool:
    """Whether float16 numbers are stored, scales themselves or factors of them."""
    format = formats.get(word)
    return np.float16 in (format.scale_type, format.stored_scales and format.stored_scales.scale_type)


def shape_and_types(q: QuantizedTensor, w: NDArray) -> None:
    decoded = q.dequantize()
    assert q.codes.shape == w.shape == decoded.shape
    assert (q.codes.dtype, decoded.dtype) == (q.format.code_type, np.float32)
    assert np.isfinite(decoded).all()
    assert (q.scales is None) == (q.format.scale_type is None)
    if q.scales is not None:
        assert (q.scales.shape, q.scales.dtype) == (q.granularity.scale_shape(w.shape), q.format.scale_type)
    if q.zero_points is not None:
        assert q.scales is not None
        assert q.zero_points.shape == q.scales.shape


def decoding_is_a_fixed_point(q: QuantizedTensor) -> None:
    """With the scales it has; nested ones are those of the format below."""
    format = q.format.base or q.format
    again = format.encode(q.dequantize(), q.granularity, q.scales, q.zero_points)
    np.testing.assert_array_equal(again.dequantize(), q.dequantize())


def errors_are_bounded(q: QuantizedTensor, w: NDArray) -> None:
    """Half the widest gap between levels, beyond them `CLIPPED`, and what the rounding of the scale moves."""
    error = np.abs(q.dequantize().astype(np.float64) - w)
    # w / s, the product with s and s itself are each rounded to float32: three eps of |w|, and where they are subnormal
    # a unit of the last place for each of the codes.
    slack = 4 * EPS * np.abs(w.astype(np.float64)) + (1 << min(q.format.bits, 8)) * SUBNORMAL
    if q.scales is None:
        mantissa, least = (10, -24) if q.format.name == "float16" else (7, -133)
        np.testing.assert_array_less(error, half_gap(w, mantissa, least) + slack)
        return
    exact, _ = q.format.fit(w, q.granularity)
    assert exact is not None
    moved = np.abs(exact.astype(np.float64) - q.scales.astype(np.float64))
    scale_is_within_its_rounding(q, exact, moved)
    signed, moved = (q.granularity.spread(a.astype(np.float64), w.shape) for a in (exact, moved))
    s = np.abs(signed)
    y = w / np.where(signed == 0, 1, signed)
    low, high = outermost(q)
    gap = half_gap(y, *FLOAT8[q.format.name]) if q.format.name in FLOAT8 else widest(q) / 2
    steps = np.where((y < low) | (y > high), np.maximum(gap, CLIPPED.get(q.format.name, 0)), gap)
    bound = steps * s + max(-low, high) * moved + slack
    if q.zero_points is not None and q.zero_points.dtype != q.codes.dtype:
        minimum = q.granularity.spread(np.abs(q.zero_points.astype(np.float64)), w.shape)
        rounding = 2.0**-11 if q.zero_points.dtype == np.float16 else EPS
        bound += minimum * rounding + (2.0**-25 if q.zero_points.dtype == np.float16 else 0)
    assert (error <= bound * (1 + 2 * EPS)).all(), float(np.max(error - bound))


def scale_is_within_its_rounding(q: QuantizedTensor, exact: NDArray, moved: NDArray) -> None:
    if q.nested is not None:
        # The sum with the mean is rounded as well, and so is the difference before.
        stated = q.nested.error + 4 * EPS * np.abs(q.nested.offset) + 4 * EPS * np.max(np.abs(exact), initial=0)
        axis = q.granularity.axis
        by_row = moved if axis is None or q.granularity.block is None else np.moveaxis(moved, axis, -1)
        assert (by_row.reshape(-1) <= stated + 300 * SUBNORMAL).all()
    elif q.format.scale_type == np.float16:
        assert (moved <= np.abs(exact) * 2.0**-11 + 2.0**-25).all()
    else:
        assert not moved.any()


FLOAT8 = {"float8_e4m3": (3, -9), "float8_e5m2": (2, -16)}


def half_gap(y: NDArray, mantissa: int, least: int) -> NDArray[np.float64]:
    """Half the gap of a floating-point type around `y`; its smallest number is 2^least."""
    exponent = np.floor(np.log2(np.maximum(np.abs(y.astype(np.float64)), 2.0**-1000)))
    return 2.0 ** np.maximum(exponent - mantissa, least) / 2 * (1 + 2.0**-20)


def outermost(q: QuantizedTensor) -> tuple[float, float]:
    """The lowest and highest multiple of the scale, counted from zero or from the minimum."""
    levels = q.format.levels
    if levels is not None:
        return float(levels.min()), float(levels.max())
    if q.format.name in FLOAT8:
        largest = float(ml_dtypes.finfo(q.format.code_type).max)
        return -largest, largest
    if q.codes.dtype.kind == "i":
        half = 1 << (q.format.bits - 1)
        if q.format.lowest is not None:
            return float(q.format.lowest), float(half - 1)
        return float(-half + (q.format.name in SYMMETRIC)), float(half - 1)
    return 0.0, float((1 << q.format.bits) - 1)


def widest(q: QuantizedTensor) -> float:
    levels = q.format.levels
    return 1.0 if levels is None else float(np.diff(np.sort(levels)).max())


def zero_stays_zero(q: QuantizedTensor, w: NDArray) -> None:
    decoded = q.dequantize()
    if not q.format.name.startswith(WITHOUT_ZERO):
        assert not decoded[w == 0].any()
    elif not w.any():
        assert not decoded.any()


def bytes_are_counted(q: QuantizedTensor) -> None:
    groups = math.prod(q.granularity.scale_shape(q.shape)) if q.scales is not None else 0
    expected = -(-q.codes.size * q.format.bits // 8)
    if isinstance(q.nested, StoredScales):
        expected += q.nested.nbytes
    elif q.nested is not None:
        expected += groups + 4 * -(-groups // q.format.nested_block) + 4
    elif q.format.scale_type is not None:
        expected += groups * q.format.scale_type.itemsize
    if q.zero_points is not None and not isinstance(q.nested, StoredScales):
        minimum = q.zero_points.dtype != q.codes.dtype
        expected += groups * q.zero_points.dtype.itemsize if minimum else -(-groups * q.format.bits // 8)
    parts = layouts.compact(q)
    assert q.nbytes == expected == sum(part.nbytes for part in parts.values())
    assert q.bits_per_weight == 8 * expected / max(1, q.codes.size)
    assert_same(layouts.from_compact(q.format, q.granularity, q.shape, parts), q)


def cut_or_whole(q: QuantizedTensor, weight: NDArray) -> None:
    with mock.patch.object(lazy, "SLICE_ELEMENTS", 50):
        assert_same(lazy.Encoding(ir.tensor(weight), q.format, q.granularity).result(), q)


def assert_same(a: QuantizedTensor, b: QuantizedTensor) -> None:
    for x, y in ((a.codes, b.codes), (a.scales, b.scales), (a.zero_points, b.zero_points)):
        assert (x is None) == (y is None)
        if x is not None and y is not None:
            assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
    np.testing.assert_array_equal(a.dequantize(), b.dequantize())


@pytest.mark.parametrize("word", [word for word in WORDS if word not in TWO_LEVELS])
@drawn(12)
@given(data=st.data())
def test_powers_of_two_go_through(word: str, data: st.DataObject) -> None:
    """Of numbers whose scales stay normal in the type that stores them; else rounding would differ."""
    shape = data.draw(st.sampled_from([(1, 64), (3, 70), (2, 31)]))
    granularity = data.draw(granularities(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    w = (rng.uniform(0.5, 4, shape) * rng.choice([-1, 1], shape)).astype(np.float32)
    factor = np.float32(2.0 ** data.draw(st.integers(-5, 10)))
    one, other = (formats.quantize(x, word, granularity).dequantize() for x in (w, w * factor))
    np.testing.assert_array_equal(one * factor, other)


@looped("bad", [np.nan, np.inf, -np.inf])
@looped("dtype", DTYPES)
@pytest.mark.parametrize("word", WORDS)
def test_what_is_not_finite_is_refused_with_its_place(word: str, dtype: np.dtype, bad: float) -> None:
    w = np.ones((3, 40), dtype)
    w[1, 7] = w[2, 0] = bad
    with pytest.raises(BadModel, match=r"weight 'fc\.w' holds -?(nan|inf) at \[1, 7\]; repair the model"):
        formats.quantize(w, word, name="fc.w")


@pytest.mark.parametrize("word", [w for w in WORDS if has_half_scales(w)])
def test_a_scale_beyond_float16_is_refused(word: str) -> None:
    with pytest.raises(BadModel, match=f"weight 'w': a scale or minimum of .* does not fit float16, as {word} stores"):
        formats.quantize(np.full((1, 32), 1e10, np.float32) * np.linspace(-1, 1, 32, dtype=np.float32), word)


def test_gguf_scales_too_small_for_float16_decode_to_zero() -> None:
    assert not formats.quantize(np.full((1, 32), 1e-9, np.float32), "q4_0").dequantize().any()
    assert gguf.reciprocal(np.array([0, 1e-40, 2], np.float32)).tolist() == [0, 0, 0.5]


@pytest.mark.parametrize("word", [w for w in WORDS if formats.get(w).scale_type is not None])
def test_the_largest_numbers_decode_to_finite_ones(word: str) -> None:
    largest = np.finfo(np.float32).max
    w = np.array([[-largest, largest, 1, 0] * 16], np.float32)
    if has_half_scales(word):
        with pytest.raises(BadModel):
            formats.quantize(w, word)
    else:
        assert np.isfinite(formats.quantize(w, word).dequantize()).all()

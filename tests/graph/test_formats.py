"""Laws that every format in the folder keeps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from onnxq import formats
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import Format, Granularity, QuantizedTensor

EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).tiny)
SUBNORMAL = float(np.finfo(np.float32).smallest_subnormal)

every_format = pytest.mark.parametrize("name", formats.names())
with_scales = pytest.mark.parametrize("name", [n for n in formats.names() if n not in ("float16", "bfloat16")])
granularities = pytest.mark.parametrize(
    ("shape", "granularity"),
    [
        pytest.param((5, 7), Granularity(), id="5x7-tensor"),
        pytest.param((5, 7), Granularity(0), id="5x7-channel0"),
        pytest.param((5, 7), Granularity(1), id="5x7-channel1"),
        pytest.param((4, 64), Granularity(1, 16), id="4x64-block16"),
        pytest.param((4, 37), Granularity(1, 16), id="4x37-block16-ragged"),
        pytest.param((37, 4), Granularity(0, 16), id="37x4-block16-ragged-axis0"),
        pytest.param((3, 20, 2), Granularity(1, 8), id="3x20x2-block8-ragged-middle"),
        pytest.param((3, 4, 2, 2), Granularity(1), id="3x4x2x2-channel1"),
        pytest.param((70,), Granularity(0, 64), id="70-block64-ragged"),
        pytest.param((1,), Granularity(), id="1-tensor"),
        pytest.param((3, 1), Granularity(1, 16), id="3x1-block16"),
    ],
)
SPECIAL = {
    "zeros": np.zeros((4, 16), np.float32),
    "constant": np.full((4, 16), -0.37, np.float32),
    "positive": np.linspace(1, 2, 64, dtype=np.float32).reshape(4, 16),
    "subnormal": np.linspace(-1e-40, 1e-40, 64, dtype=np.float32).reshape(4, 16),
    "huge": np.linspace(-1.7e38, 1.7e38, 64, dtype=np.float32).reshape(4, 16),
    "outlier": np.r_[np.full(63, 1e-3), 1e3].astype(np.float32).reshape(4, 16),
    "scalar": np.array(0.5, np.float32).reshape(1, 1),
}


def normal(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def codes_of(format: Format) -> NDArray:
    """Every code the format has."""
    if format.name == "int8":
        return np.arange(-127, 128, dtype=np.int8)
    return np.arange(1 << format.bits, dtype=np.uint8)


def steps(q: QuantizedTensor, w: NDArray) -> NDArray:
    """The widest gap between neighbouring numbers of the format around each weight."""
    if q.scales is None:
        return np.spacing(np.abs(w).astype(q.codes.dtype)).astype(np.float64)
    levels = getattr(q.format, "levels", np.arange(2.0))
    gap = np.diff(np.sort(levels)).max()
    return gap * q.granularity.spread(q.scales, w.shape).astype(np.float64)


def assert_within_half_a_step(q: QuantizedTensor, w: NDArray) -> None:
    error = np.abs(q.dequantize().astype(np.float64) - w)
    # The quotient w / s, the product with s and s itself are each rounded to float32, which is worth up to three eps
    # of |w|, and where they are subnormal one unit of the last place for each of the codes.
    slack = 3 * EPS * np.abs(w) + (1 << min(q.format.bits, 8)) * SUBNORMAL
    np.testing.assert_array_less(error, steps(q, w) / 2 * (1 + 2 * EPS) + slack)


def test_the_folder_is_the_list() -> None:
    assert {"int8", "uint4", "uint8", "nf4", "fp4", "float16", "bfloat16"} <= set(formats.names())
    assert all(formats.get(name).name == name for name in formats.names())


def test_an_unknown_word_lists_the_known_ones() -> None:
    with pytest.raises(BadRecipe, match="no number format 'int3'; choose one of bfloat16, float16, fp4, int8"):
        formats.get("int3")


@every_format
@granularities
def test_error_is_at_most_half_a_step(name: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    w = normal(shape)
    assert_within_half_a_step(formats.get(name).encode(w, granularity), w)


@every_format
@pytest.mark.parametrize("what", [what for what in SPECIAL if what != "huge"])
@pytest.mark.parametrize("granularity", [Granularity(), Granularity(0), Granularity(1, 16)], ids=str)
def test_error_is_at_most_half_a_step_on_special_numbers(name: str, what: str, granularity: Granularity) -> None:
    w = SPECIAL[what]
    if name == "float16":
        w = np.clip(w, -65504, 65504)
    assert_within_half_a_step(formats.get(name).encode(w, granularity), w)


@with_scales
@pytest.mark.parametrize("granularity", [Granularity(), Granularity(0), Granularity(1, 16)], ids=str)
def test_huge_weights_stay_finite(name: str, granularity: Granularity) -> None:
    q = formats.get(name).encode(SPECIAL["huge"], granularity)
    assert np.isfinite(q.dequantize()).all()
    assert_within_half_a_step(q, SPECIAL["huge"])


@every_format
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_error_is_at_most_half_a_step_on_any_numbers(name: str, data: st.DataObject) -> None:
    rows, k = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 40)))
    limit = 60000.0 if name == "float16" else float(np.float32(1e38))
    w = data.draw(arrays(np.float32, (rows, k), elements=st.floats(-limit, limit, width=32)))
    for granularity in (Granularity(), Granularity(0), Granularity(1, 16)):
        assert_within_half_a_step(formats.get(name).encode(w, granularity), w)


@every_format
@granularities
def test_encoding_is_idempotent(name: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    q = formats.get(name).encode(normal(shape), granularity)
    again = q.format.encode(q.dequantize(), granularity, q.scales, q.zero_points)
    np.testing.assert_array_equal(again.codes, q.codes)


@with_scales
def test_every_code_survives(name: str) -> None:
    format = formats.get(name)
    codes = codes_of(format)
    zeros = None if name in ("int8", "nf4", "fp4") else np.array(3, np.uint8)
    q = QuantizedTensor(format, Granularity(), codes, np.float32(0.25).reshape(()), zeros)
    again = format.encode(q.dequantize(), Granularity(), q.scales, zeros)
    np.testing.assert_array_equal(again.dequantize(), q.dequantize())


@with_scales
def test_the_nearest_number_is_taken(name: str) -> None:
    format, w = formats.get(name), normal((1, 64))
    q = format.encode(w, Granularity())
    codes = codes_of(format)
    numbers = QuantizedTensor(format, Granularity(), codes, q.scales, q.zero_points).dequantize()
    least = np.abs(numbers[:, None] - w.reshape(-1)).min(axis=0)
    np.testing.assert_allclose(np.abs(q.dequantize() - w).reshape(-1), least, atol=4 * EPS * np.abs(w).max())


@with_scales
@granularities
def test_shapes_and_types(name: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    q = formats.get(name).encode(normal(shape), granularity)
    assert q.codes.shape == shape == q.dequantize().shape
    assert q.scales is not None
    assert q.scales.shape == granularity.scale_shape(shape)
    assert q.scales.dtype == q.dequantize().dtype == np.float32
    if q.zero_points is not None:
        assert (q.zero_points.shape, q.zero_points.dtype) == (q.scales.shape, q.codes.dtype)


@with_scales
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


@every_format
def test_zero_is_exact(name: str) -> None:
    w = normal((4, 32))
    w[:, ::3] = 0
    w[2] = 0
    for granularity in (Granularity(), Granularity(0), Granularity(1, 16)):
        decoded = formats.get(name).encode(w, granularity).dequantize()
        np.testing.assert_array_equal(decoded[w == 0], 0)


@every_format
@pytest.mark.parametrize(
    ("shape", "granularity"),
    [
        pytest.param((0,), Granularity(), id="0-tensor"),
        pytest.param((3, 0), Granularity(0), id="3x0-channel0"),
        pytest.param((0, 3), Granularity(0), id="0x3-channel0"),
        pytest.param((3, 0), Granularity(1, 16), id="3x0-block16"),
        pytest.param((0, 32), Granularity(1, 16), id="0x32-block16"),
    ],
)
def test_empty(name: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    q = formats.get(name).encode(np.zeros(shape, np.float32), granularity)
    assert q.dequantize().shape == shape
    if q.scales is not None:
        assert q.scales.shape == granularity.scale_shape(shape)


@with_scales
@granularities
def test_nbytes_counts_codes_scales_and_zero_points(
    name: str, shape: tuple[int, ...], granularity: Granularity
) -> None:
    q = formats.get(name).encode(normal(shape), granularity)
    groups = int(np.prod(granularity.scale_shape(shape)))
    zeros = groups if q.zero_points is not None else 0
    bits = (int(np.prod(shape)) + zeros) * q.format.bits
    assert q.nbytes == -(-bits // 8) + 4 * groups


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_a_cast_keeps_every_number_of_the_short_type(name: str, dtype: type) -> None:
    all_bits = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    numbers = all_bits[np.isfinite(all_bits.astype(np.float32))]
    q = formats.get(name).encode(numbers.astype(np.float32), Granularity())
    np.testing.assert_array_equal(q.codes.view(np.uint16), numbers.view(np.uint16))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_cast_refuses_what_is_not_finite(name: str, bad: float) -> None:
    with pytest.raises(BadModel, match=f"a weight of magnitude .* does not fit {name}; keep its node in float"):
        formats.get(name).encode(np.array([1, bad], np.float32), Granularity())


def test_float16_refuses_what_would_overflow() -> None:
    formats.get("float16").encode(np.array([65519], np.float32), Granularity())
    with pytest.raises(BadModel, match="a weight of magnitude 65520 does not fit float16"):
        formats.get("float16").encode(np.array([65520], np.float32), Granularity())


@pytest.mark.parametrize(("axis", "block"), [(None, 16), (0, 0), (1, -1)])
def test_a_block_needs_an_axis_and_a_size(axis: int | None, block: int) -> None:
    with pytest.raises(ValueError, match="needs an axis"):
        Granularity(axis, block)

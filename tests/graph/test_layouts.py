"""Every byte layout unpacks to the codes it was made from, and counting data show which nibble is which."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds.nested import NestedScales

#: Rows and K; K = 1, odd, ragged against the block, and a multiple of it.
SHAPES = [(1, 1), (2, 5), (3, 16), (3, 17), (5, 32), (4, 47), (2, 64)]
shapes = pytest.mark.parametrize(("n", "k"), SHAPES, ids=[f"{n}x{k}" for n, k in SHAPES])
axes = pytest.mark.parametrize("axis", [1, 0], ids=["NK", "KN"])
BLOCK = 16


def quantized(name: str, n: int, k: int, axis: int) -> QuantizedTensor:
    w = np.random.default_rng(n * k).standard_normal((n, k)).astype(np.float32)
    return formats.get(name).encode(np.ascontiguousarray(w if axis == 1 else w.T), Granularity(axis, BLOCK))


def counting(n: int, k: int) -> QuantizedTensor:
    """uint4 codes 0, 1, 2 … along K."""
    codes = (np.arange(n * k).reshape(n, k) % 16).astype(np.uint8)
    blocks = -(-k // BLOCK)
    zeros = np.full((n, blocks), 9, np.uint8)
    return QuantizedTensor(formats.get("uint4"), Granularity(1, BLOCK), codes, np.ones((n, blocks), np.float32), zeros)


def nibbles(packed: NDArray) -> NDArray:
    """Low nibble, then high nibble of each byte."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def by_row(q: QuantizedTensor, array: NDArray) -> NDArray:
    return array if q.granularity.axis == 1 else array.T


def padding(q: QuantizedTensor, n: int, k: int) -> NDArray:
    """What a short last block must be filled with: [N, missing]."""
    missing = -k % BLOCK
    zeros = by_row(q, q.zero_points)[:, -1:] if q.zero_points is not None else np.zeros((n, 1), np.int64)
    return np.repeat(zeros, missing, axis=1)


@pytest.mark.parametrize("count", range(1, 8))
def test_nibbles_low_first(count: int) -> None:
    codes = np.arange(1, count + 1, dtype=np.uint8)
    packed = layouts.nibbles_low_first(codes)
    assert packed.shape == (-(-count // 2),)
    np.testing.assert_array_equal(nibbles(packed)[:count], codes)
    assert not nibbles(packed)[count:].any()


def test_nibbles_of_counting_data() -> None:
    assert layouts.nibbles_low_first(np.arange(1, 7, dtype=np.uint8)).tolist() == [0x21, 0x43, 0x65]


def test_nibbles_of_negative_codes_are_twos_complement() -> None:
    assert layouts.nibbles_low_first(np.array([-1, -8, 7, 0], np.int8)).tolist() == [0x8F, 0x07]


@shapes
@axes
@pytest.mark.parametrize("name", ["uint4", "uint8", "int8"])
def test_matmul_nbits(name: str, n: int, k: int, axis: int) -> None:
    q = quantized(name, n, k, axis)
    packed = layouts.matmul_nbits(q)
    assert packed.shape == (n, -(-k // BLOCK), BLOCK * q.format.bits // 8)
    codes = (nibbles(packed) if q.format.bits == 4 else packed).reshape(n, -1).astype(np.int64)
    offset = 128 if name == "int8" else 0
    np.testing.assert_array_equal(codes[:, :k] - offset, by_row(q, q.codes))
    np.testing.assert_array_equal(codes[:, k:] - offset, padding(q, n, k))


def test_matmul_nbits_of_counting_data() -> None:
    packed = layouts.matmul_nbits(counting(1, 18))
    assert packed[0, 0].tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert packed[0, 1].tolist() == [0x10, *[0x99] * 7]  # the zero point fills the block


@shapes
@axes
@pytest.mark.parametrize("name", ["uint4", "uint8", "int8"])
def test_matmul_nbits_zero_points(name: str, n: int, k: int, axis: int) -> None:
    q = quantized(name, n, k, axis)
    packed = layouts.matmul_nbits_zero_points(q)
    blocks = -(-k // BLOCK)
    assert packed.shape == (n, -(-blocks * q.format.bits // 8))
    zeros = (nibbles(packed) if q.format.bits == 4 else packed)[:, :blocks]
    np.testing.assert_array_equal(zeros, 128 if q.zero_points is None else by_row(q, q.zero_points))


@shapes
@axes
def test_scales_are_in_the_order_of_the_rows(n: int, k: int, axis: int) -> None:
    q = quantized("uint4", n, k, axis)
    assert q.scales is not None
    np.testing.assert_array_equal(layouts.scales_by_row(q), by_row(q, q.scales))


@shapes
@pytest.mark.parametrize("name", ["uint4", "uint8"])
def test_gather_block_has_no_padding_but_of_its_last_byte(name: str, n: int, k: int) -> None:
    q = quantized(name, n, k, 1)
    packed = layouts.gather_block(q)
    assert packed.shape == (n, -(-k * q.format.bits // 8))
    codes = nibbles(packed) if q.format.bits == 4 else packed
    np.testing.assert_array_equal(codes[:, :k], q.codes)


@shapes
@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_matmul_bnb4_counts_blocks_through_the_flattened_weight(name: str, n: int, k: int) -> None:
    q = quantized(name, n, k, 1)
    packed = layouts.matmul_bnb4(q)
    assert packed.shape == (-(-n * k // 2),)
    high_first = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)
    np.testing.assert_array_equal(high_first[: n * k].reshape(n, k), q.codes)


def test_matmul_bnb4_of_counting_data() -> None:
    assert layouts.matmul_bnb4(counting(1, 5)).tolist() == [0x01, 0x23, 0x40]


@shapes
@axes
@pytest.mark.parametrize("name", ["uint4", "nf4", "fp4"])
def test_halves(name: str, n: int, k: int, axis: int) -> None:
    q = quantized(name, n, k, axis)
    packed = layouts.halves(q)
    blocks = -(-k // BLOCK)
    assert packed.shape == (n * blocks, BLOCK // 2)
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(n, -1)
    np.testing.assert_array_equal(codes[:, :k], by_row(q, q.codes))
    levels = q.format.levels
    if levels is None:
        np.testing.assert_array_equal(codes[:, k:], padding(q, n, k))
    else:
        assert not levels[codes[:, k:]].any()


def test_halves_of_counting_data() -> None:
    assert layouts.halves(counting(1, 16)).tolist() == [[0x80, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7]]


@axes
@pytest.mark.parametrize("name", ["uint4", "nf4"])
def test_blocks_last_of_more_than_two_axes(name: str, axis: int) -> None:
    w = np.random.default_rng(0).standard_normal((6, 20, 3)).astype(np.float32)
    q = formats.get(name).encode(w, Granularity(axis, BLOCK))
    rows = layouts.blocks_last(q, q.codes).reshape(-1, -(-w.shape[axis] // BLOCK) * BLOCK)
    np.testing.assert_array_equal(rows[:, : w.shape[axis]], np.moveaxis(q.codes, axis, -1).reshape(-1, w.shape[axis]))
    assert len(rows) == w.size // w.shape[axis]


def outline_of(q: QuantizedTensor) -> layouts.Outline:
    return layouts.Outline(q.format, q.granularity, q.shape, None if q.scales is None else q.scales.dtype)


def fitting(q: QuantizedTensor) -> dict[str, layouts.Layout]:
    """The layouts that take such a weight, of those in the folder."""
    found = {"codes": layouts.codes, "flat": layouts.flat(layouts.codes)}
    if q.format.code_type.kind in "iu":
        found["bit_fields"] = layouts.bit_fields
    if q.scales is not None:
        found |= {"scales": layouts.scales, "group_scales": layouts.group_scales}
    if q.zero_points is not None:
        found |= {"zero_points": layouts.zero_points, "group_offsets": layouts.group_offsets}
    if q.codes.ndim == 2:
        found |= {"turned": layouts.turned(layouts.codes), "stacked": layouts.stacked(layouts.codes, 1)}
    if q.granularity.block is None and q.scales is not None:
        found["by_channel"] = layouts.by_channel(layouts.scales)
    if q.granularity.block is not None and q.scales is not None:
        found |= {"scales_by_row": layouts.scales_by_row, "onnxq_scales": layouts.onnxq_scales}
        found["column"] = layouts.column(layouts.scales_by_row)
        if q.zero_points is not None:
            found["zero_points_by_row"] = layouts.zero_points_by_row
    if q.granularity.block is not None and q.scales is not None and not q.format.has_minimum:
        found["block_rows"] = layouts.block_rows
        if q.format.bits <= 8 and q.format.code_type.kind in "iu":
            found["onnxq_tiles"] = layouts.onnxq_tiles
        if q.format.bits in (2, 4, 8) and q.format.is_integer:
            found |= {"matmul_nbits": layouts.matmul_nbits, "gather_block": layouts.gather_block}
            found["matmul_nbits_zero_points"] = layouts.matmul_nbits_zero_points
        if q.format.bits == 4:
            found |= {"matmul_bnb4": layouts.matmul_bnb4, "halves": layouts.halves}
        if q.zero_points is not None:
            found["onnxq_zero_points"] = layouts.onnxq_zero_points
    if isinstance(q.nested, NestedScales):
        names = ("nested_codes", "nested_factors", "nested_offset")
        found |= {name: getattr(layouts, name) for name in names}
    return found


@pytest.mark.parametrize("shape", [(18, 40), (2, 3, 4, 20)], ids=str)
@pytest.mark.parametrize("word", [*formats.names(), "uniform3"])
def test_type_and_shape_are_known_before_the_weight_is_computed(word: str, shape: tuple[int, ...]) -> None:
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    granularities = [Granularity(0), Granularity(len(shape) - 1, 16), Granularity(0, 16)]
    for granularity in [Granularity(), *granularities] if formats.get(word).base is None else granularities:
        q = formats.quantize(w, word, Granularity() if formats.get(word).scale_type is None else granularity)
        for name, layout in fitting(q).items():
            array, form = layout(q), layout.form(outline_of(q))
            assert array.shape == form.shape, (name, granularity)
            short = form.dtype.itemsize == 1 and form.dtype.kind == "V"  # of ONNX: a byte for each code until written
            assert array.dtype == form.dtype or (short and array.dtype == q.format.code_type), (name, granularity)


@pytest.mark.parametrize("axis", [0, 1])
def test_dense_tiles_know_their_shape(axis: int) -> None:
    q = formats.quantize(np.ones((40, 70), np.float32), "bfloat16")
    assert layouts.dense(axis)(q).shape == layouts.dense(axis).form(outline_of(q)).shape

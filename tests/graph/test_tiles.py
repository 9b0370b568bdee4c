"""The tiles that the operators of the onnxq domain read: packed, unpacked, and shown by counting data."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor

SHAPES = [(1, 1), (2, 5), (15, 16), (16, 17), (17, 32), (33, 47), (3, 300), (0, 32), (4, 0)]
shapes = looped("n, k", SHAPES)
TILED = [
    *("uint4", "uint8", "int4", "int3", "int2", "uint2", "int8", "pow2_int4"),
    *("nf4", "fp4", "nf4_dq", "mxfp4", "q4_0", "q5_0", "q8_0"),
]
every_format = pytest.mark.parametrize("name", TILED)


@shapes
@every_format
@looped("axis", [1, 0])
@looped("block", [16, 32, 256])
def test_unpacking_gives_what_was_packed(name: str, n: int, k: int, axis: int, block: int) -> None:
    w = np.random.default_rng(n + k).standard_normal((n, k)).astype(np.float32)
    format = formats.get(name)
    q = format.encode(np.ascontiguousarray(w if axis else w.T), Granularity(axis, block))
    weight, scales = layouts.onnxq_tiles(q), layouts.onnxq_scales(q)
    zeros = None if q.zero_points is None else layouts.onnxq_zero_points(q)
    tiles, blocks = -(-n // 16), -(-k // block)
    per_group = 8 if format.bits <= 4 else 4
    assert (weight.shape, weight.dtype) == ((tiles, blocks * block // per_group, 16, 4), np.uint8)
    assert scales.shape == (tiles, blocks, 16)
    assert zeros is None or (zeros.shape, zeros.dtype) == (scales.shape, np.uint8)
    for array in (weight, scales):
        assert array.flags.c_contiguous
    back = layouts.from_onnxq_tiles(format, weight, scales, zeros, n=n, k=k, block=block)
    for got, wanted in ((back.codes, q.codes), (back.scales, q.scales), (back.zero_points, q.zero_points)):
        if wanted is not None:
            np.testing.assert_array_equal(got, wanted if axis else wanted.T)
            assert got is not None and got.dtype == wanted.dtype
    np.testing.assert_array_equal(back.dequantize(), q.dequantize() if axis else q.dequantize().T)


@shapes
def test_dense_tiles_by_their_formula(n: int, k: int) -> None:
    rows = np.arange(1, n * k + 1, dtype=np.uint16).reshape(n, k)
    tiles = layouts.dense_tiles(rows)
    assert tiles.shape == (-(-n // 16), -(-k // 32) * 16, 16, 2)
    assert tiles.flags.c_contiguous
    whole = tiles.transpose(0, 2, 1, 3).reshape(-(-n // 16) * 16, -(-k // 32) * 32)
    np.testing.assert_array_equal(whole[:n, :k], rows)
    assert np.count_nonzero(whole) == n * k
    if n and k:
        assert tiles[(n - 1) // 16, (k - 1) // 2, (n - 1) % 16, (k - 1) % 2] == n * k


@every_format
def test_padding_decodes_to_zero(name: str) -> None:
    n, k, block = 18, 35, 16
    w = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    q = formats.get(name).encode(w, Granularity(1, block))
    zeros = None if q.zero_points is None else layouts.onnxq_zero_points(q)
    whole = layouts.from_onnxq_tiles(
        q.format, layouts.onnxq_tiles(q), layouts.onnxq_scales(q), zeros, n=32, k=48, block=block
    )
    decoded = whole.dequantize()
    np.testing.assert_array_equal(decoded[:n, :k], q.dequantize())
    assert not decoded[n:].any()
    assert not decoded[:, k:].any()
    # E8M0 has no zero; its smallest power of two times the code of zero is as good.
    assert not whole.scales[n:].astype(np.float32).any() or name == "mxfp4"


def test_four_bits_of_counting_data() -> None:
    """Row c holds codes c, c + 1, … modulo 16."""
    codes = ((np.arange(16)[:, None] + np.arange(16)) % 16).astype(np.uint8)
    scales = np.arange(16, dtype=np.float32).reshape(16, 1)
    q = QuantizedTensor(formats.get("uint4"), Granularity(1, 16), codes, scales, np.full((16, 1), 5, np.uint8))
    tiles = layouts.onnxq_tiles(q)
    assert tiles.shape == (1, 2, 16, 4)
    assert tiles[0, 0, 0].tolist() == [0x40, 0x51, 0x62, 0x73]
    assert tiles[0, 1, 0].tolist() == [0xC8, 0xD9, 0xEA, 0xFB]
    assert tiles[0, 0, 3].tolist() == [0x73, 0x84, 0x95, 0xA6]
    assert layouts.onnxq_scales(q)[0, 0].tolist() == list(range(16))
    assert layouts.onnxq_zero_points(q)[0, 0].tolist() == [5] * 16


def test_eight_bits_of_counting_data() -> None:
    codes = np.arange(-128, 128, dtype=np.int16).astype(np.int8).reshape(16, 16)
    q = QuantizedTensor(formats.get("int8"), Granularity(1, 16), codes, np.ones((16, 1), np.float32))
    tiles = layouts.onnxq_tiles(q)
    assert tiles.shape == (1, 4, 16, 4)
    assert tiles[0, 0, 0].tolist() == [0, 1, 2, 3]
    assert tiles[0, 3, 2].tolist() == [44, 45, 46, 47]


@shapes
@pytest.mark.parametrize("name", ["int2", "int3", "uint2", "ternary", "tq2_0"])
@looped("axis", [1, 0])
@looped("block", [16, 32, 256])
def test_codes_of_2_and_3_bits_become_those_of_4(name: str, n: int, k: int, axis: int, block: int) -> None:
    w = np.random.default_rng(n + k).standard_normal((n, k)).astype(np.float32)
    format = formats.get(name)
    q = format.encode(np.ascontiguousarray(w if axis else w.T), Granularity(axis, block))
    short = layouts.few_bits_tiles(q)
    assert (short.shape, short.dtype) == ((-(-n // 16), -(-k // block) * block // 8, 16, format.bits), np.uint8)
    assert short.flags.c_contiguous
    wide = layouts.from_few_bits_tiles(short, signed=format.code_type.kind == "i")
    zeros = None if q.zero_points is None else layouts.onnxq_zero_points(q)
    back = layouts.from_onnxq_tiles(format, wide, layouts.onnxq_scales(q), zeros, n=n, k=k, block=block)
    np.testing.assert_array_equal(back.codes, q.codes if axis else q.codes.T)
    if format.code_type.kind == "i":  # what fills up rows and tiles is the same too
        np.testing.assert_array_equal(wide, layouts.onnxq_tiles(q))


def test_every_code_of_2_and_3_bits_lies_where_the_drawing_says() -> None:
    codes = np.tile(np.arange(-4, 4, dtype=np.int8), 2).reshape(1, 16)
    q = QuantizedTensor(formats.get("int3"), Granularity(1, 16), codes, np.ones((1, 1), np.float32))
    a, b, c, d, e, f, g, h = (code & 7 for code in range(-4, 4))
    low = [code & 3 for code in (a, b, c, d, e, f, g, h)]
    high = sum((code >> 2) << place for place, code in enumerate((a, b, c, d, e, f, g, h)))
    wanted = [
        low[0] | low[4] << 4 | low[1] << 2 | low[5] << 6,
        low[2] | low[6] << 4 | low[3] << 2 | low[7] << 6,
        high,
    ]
    np.testing.assert_array_equal(layouts.few_bits_tiles(q)[0, 0, 0], wanted)


@pytest.mark.parametrize("name", ["int4", "uniform3", "q8_0"])
def test_codes_of_other_widths_are_no_few_bits(name: str) -> None:
    q = formats.quantize(np.ones((2, 32), np.float32), name, Granularity(1, 32))
    with pytest.raises(ValueError, match=r"codes of|tiles hold"):
        layouts.few_bits_tiles(q)
    with pytest.raises(ValueError, match="tiles of 2 or 3 bits are"):
        layouts.from_few_bits_tiles(np.zeros((1, 2, 16, 4), np.uint8), signed=True)


@looped("n, k", [(1, 1), (16, 4), (17, 5), (40, 33)])
@looped("directions", [1, 2])
@looped("gates", [1, 3, 4])
def test_tiles_of_recurrent_layers_by_their_formula(gates: int, directions: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n + k)
    codes = rng.integers(-128, 128, (directions * gates * n, k)).astype(np.int8)
    scales = rng.standard_normal(len(codes)).astype(np.float32)
    q = QuantizedTensor(formats.get("int8"), Granularity(0), codes, scales)
    tiles, steps = layouts.recurrent_tiles(directions, gates), layouts.recurrent_scales(directions, gates)
    packed, of_rows = tiles(q), steps(q)
    outline = layouts.Outline(q.format, q.granularity, q.shape, np.dtype(np.float32))
    for array, layout in ((packed, tiles), (of_rows, steps)):
        assert array.flags.c_contiguous
        assert (array.dtype, array.shape) == tuple(layout.form(outline))
    assert packed.shape == (directions, -(-n // 16), -(-k // 4), gates, 16, 4)
    for row in range(len(codes)):
        d, gate, i = row // n // gates, row // n % gates, row % n
        assert of_rows[d, i // 16, gate, i % 16] == scales[row]
        lines = packed[d, i // 16, :, gate, i % 16].reshape(-1)
        assert np.array_equal(lines[:k].astype(int) - 128, codes[row])
        assert np.all(lines[k:] == 128)
    assert np.count_nonzero(of_rows) == len(codes)
    back = layouts.from_recurrent_tiles(packed, of_rows, n=n, k=k, gates=gates)
    np.testing.assert_array_equal(back.codes, codes)
    np.testing.assert_array_equal(back.scales, scales)
    for wrong in ({"n": n + 16}, {"k": k + 4}, {"n": 0}, {"gates": gates + 1}, {"gates": 0}):
        with pytest.raises(ValueError, match="tiles"):
            layouts.from_recurrent_tiles(packed, of_rows, **({"n": n, "k": k, "gates": gates} | wrong))
    if gates == 3:
        with pytest.raises(ValueError, match="are not those of"):
            layouts.recurrent_tiles(directions, 7 * len(codes))(q)

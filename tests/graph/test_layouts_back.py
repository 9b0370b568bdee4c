"""Layouts and their inverses: what was packed comes back, and what cannot be packed says why."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor

SHAPES = [(1, 1), (2, 5), (3, 16), (3, 17), (5, 32), (4, 47), (2, 64), (17, 300)]
shapes = pytest.mark.parametrize(("n", "k"), SHAPES, ids=[f"{n}x{k}" for n, k in SHAPES])


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def assert_same(a: QuantizedTensor, b: QuantizedTensor) -> None:
    np.testing.assert_array_equal(a.codes, b.codes)
    assert (a.codes.dtype, a.granularity) == (b.codes.dtype, b.granularity)
    np.testing.assert_array_equal(a.dequantize(), b.dequantize())


@pytest.mark.pairwise
@shapes
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("word", ["int2", "uint2", "int4", "uint4", "int8", "uint8", "q4_0", "q8_0", "pow2_int4"])
def test_matmul_nbits(word: str, block: int, n: int, k: int) -> None:
    w = normal(n, k)
    q = formats.quantize(w, word, Granularity(1, block))
    packed, zeros = layouts.matmul_nbits(q), layouts.matmul_nbits_zero_points(q)
    assert packed.shape == (n, -(-k // block), block * q.format.bits // 8)
    assert_same(layouts.from_matmul_nbits(q.format, packed, layouts.scales_by_row(q).reshape(-1), zeros, k), q)
    columns = formats.quantize(np.ascontiguousarray(w.T), word, Granularity(0, block))
    np.testing.assert_array_equal(layouts.matmul_nbits(columns), packed)


@shapes
@pytest.mark.parametrize("word", ["nf4", "fp4", "nf4_dq"])
def test_matmul_bnb4(word: str, n: int, k: int) -> None:
    q = formats.quantize(normal(n, k).reshape(-1), word)
    assert q.scales is not None
    back = layouts.from_matmul_bnb4(q.format, layouts.matmul_bnb4(q), q.scales, n * k, 64)
    assert_same(back, q)


def test_two_bits_of_counting_data() -> None:
    assert layouts.pack_codes(np.array([0, 1, 2, 3, 3], np.uint8), 2).tolist() == [0b11100100, 3]
    assert layouts.pack_codes(np.array([-2, -1, 0, 1], np.int8), 2).tolist() == [0b01001110]


def test_three_bits_of_counting_data() -> None:
    """A stream: the first code in the lowest bits, codes across the border of bytes."""
    packed = layouts.pack_codes(np.arange(8, dtype=np.uint8), 3)
    assert int.from_bytes(packed.tobytes(), "little") == sum(i << (3 * i) for i in range(8))


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("size", [0, 1, 7, 8, 1001])
def test_a_stream_of_any_width(bits: int, size: int) -> None:
    rng = np.random.default_rng(bits)
    for dtype in ("u1", "i1") if bits <= 8 else ("u2", "i2"):
        low = -(1 << (bits - 1)) if dtype[0] == "i" else 0
        codes = rng.integers(low, low + (1 << bits), size).astype(dtype)
        packed = layouts.pack_codes(codes, bits)
        assert packed.size == -(-size * bits // 8)
        np.testing.assert_array_equal(layouts.unpack_codes(packed, bits, codes.shape, dtype), codes)


def test_a_stream_longer_than_a_piece() -> None:
    codes = np.random.default_rng(0).integers(0, 8, (1 << 20) + 3).astype(np.uint8)
    np.testing.assert_array_equal(layouts.unpack_codes(layouts.pack_codes(codes, 3), 3, codes.shape, "u1"), codes)


@pytest.mark.parametrize("group", [64, 128])
def test_linear4bit(group: int) -> None:
    """The fused product equals unpacking by hand: y = x · wᵀ, w = scale · (code − 8)."""
    w, int4, groups = normal(6, 256), formats.get("int4"), Granularity(1, group)
    scales = int4.fit(w, groups)[0]
    assert scales is not None
    q = int4.encode(w, groups, scales.astype(np.float16))
    weight, half = layouts.linear4bit(q)
    assert (weight.shape, weight.dtype, half.shape, half.dtype) == ((6, 128), np.uint8, (6, 256 // group), np.float16)
    assert_same(layouts.from_linear4bit(weight, half), q)
    codes = np.stack([weight & 15, weight >> 4], axis=-1).reshape(6, 256).astype(np.float32)
    np.testing.assert_array_equal((codes - 8) * np.repeat(half.astype(np.float32), group, axis=1), q.dequantize())


def test_what_linear4bit_does_not_hold() -> None:
    for word, shape in (("nf4", (2, 64)), ("uint4", (2, 64)), ("int4", (2, 3)), ("int4", (64,))):
        with pytest.raises(BadModel, match=f"symmetric 4-bit matrices .* not {word} of shape"):
            layouts.linear4bit(formats.quantize(normal(*shape), word))
    with pytest.raises(BadModel, match="scales of a Linear4bit checkpoint are float16"):
        layouts.linear4bit(formats.quantize(normal(2, 64), "int4"))


@pytest.mark.parametrize(
    ("weight", "scales", "words"),
    [
        (np.zeros((4, 32), np.uint8), np.ones((3, 1), np.float16), "are not \\[out, in / 2\\] and \\[out, groups\\]"),
        (np.zeros((4, 32), np.int8), np.ones((4, 1), np.float16), "weight_4bit is int8"),
        (np.zeros((4, 32), np.uint8), np.ones((4, 1), np.int32), "scales_4bit int32"),
        (
            np.zeros((4, 32), np.uint8),
            np.ones((4, 3), np.float16),
            "3 scales for 64 inputs fit no groups of a usual size: name the size",
        ),
        (np.zeros((4, 32), np.uint8), np.ones((4, 0), np.float16), "0 scales for 64 inputs fit no groups"),
    ],
)
def test_misfitting_linear4bit_tensors_are_refused_by_name(weight: NDArray, scales: NDArray, words: str) -> None:
    with pytest.raises(BadModel, match=f"weight 'layers.3.up': .*{words}"):
        layouts.from_linear4bit(weight, scales, "layers.3.up")


def test_what_gguf_does_not_hold() -> None:
    with pytest.raises(BadModel, match="GGUF has no nf4; choose one of bfloat16, float16, mxfp4, q2_k"):
        layouts.gguf(formats.quantize(normal(2, 64), "nf4"))
    with pytest.raises(BadModel, match="rows of whole blocks of 32, not of 33 in blocks of 32"):
        layouts.gguf(formats.quantize(normal(2, 33), "q4_0"))


def test_gguf_of_a_number_and_of_nothing() -> None:
    for shape, wanted in (((), (1, 2)), ((0,), (1, 0)), ((0, 4), (0, 8)), ((4, 0), (4, 0))):
        q = formats.quantize(np.ones(shape, np.float32), "float16")
        assert layouts.gguf(q).shape == wanted


@pytest.mark.parametrize("word", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(32,), (3, 64), (2, 3, 96)], ids=str)
def test_gguf(word: str, shape: tuple[int, ...]) -> None:
    q = formats.quantize(normal(*shape), word)
    data = layouts.gguf(q)
    assert data.size == q.nbytes
    assert_same(layouts.from_gguf(q.format, data, shape), q)


@pytest.mark.parametrize("word", [word for word in formats.names() if formats.get(word).gguf])
def test_gguf_of_any_bytes(word: str) -> None:
    """Infinite scales and NaN among them: decoded without a warning, which tests take for an error."""
    format = formats.get(word)
    block = layouts.gguf_block(format)
    raw = np.random.default_rng(0).integers(0, 256, layouts.gguf_nbytes(format, 64 * block), dtype=np.uint8)
    infinite = np.full_like(raw, 0x7C)
    infinite[::2] = 0
    for each in (raw, infinite, np.full_like(raw, 0xFF)):
        assert layouts.from_gguf(format, each, (64, block)).dequantize().shape == (64, block)


def test_q5_0_of_counting_data() -> None:
    """Element i holds code i − 16: fifth bits are those from 16 on, nibbles count twice from 0 to 15."""
    codes = np.arange(-16, 16, dtype=np.int8).reshape(1, 32)
    q = QuantizedTensor(formats.get("q5_0"), Granularity(1, 32), codes, np.array([[1]], np.float16))
    data = layouts.gguf(q)[0]
    assert data[:2].tolist() == [0x00, 0x3C]
    assert data[2:6].tolist() == [0x00, 0x00, 0xFF, 0xFF]
    assert data[6:].tolist() == [i | i << 4 for i in range(16)]


@pytest.mark.parametrize("k", [1, 7, 8, 33])
@pytest.mark.parametrize("bits", range(1, 17))
def test_fields_of_bits(bits: int, k: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, k))
    widths = layouts.fields_of(bits)
    padded = np.pad(codes, [(0, 0), (0, -k % 8)])
    packed = [layouts.low_first((padded >> low & (1 << width) - 1).astype(np.uint8), width) for width, low in widths]
    np.testing.assert_array_equal(layouts.from_bit_fields(np.concatenate(packed, axis=1), bits, k), codes)
    with pytest.raises(ValueError, match="bytes a row"):
        layouts.from_bit_fields(np.zeros((3, bits * (-(-k // 8)) + 1), np.uint8), bits, k)

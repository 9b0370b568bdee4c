"""Blocks in a row: the compiled library does what numpy does, bit for bit, and reads nothing behind the weight."""

from __future__ import annotations

import ctypes
import mmap
import warnings

import ml_dtypes
import numpy as np
import pytest
from looped import looped
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import fast as _fast
from onnxq.runtime import native

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    library = native.library()

pytestmark = pytest.mark.skipif(library is None, reason="the compiled library was not built")

WORDS = [word for word in formats.names() if formats.get(word).rule]
every_word = pytest.mark.parametrize("word", WORDS)
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
SHAPES = [
    *((1, k, 32) for k in (1, 31, 32, 33, 64, 96, 100)),
    *((n, k, b) for n in (2, 17) for k in (128, 129) for b in (1, 16, 64, 128)),
    (3, 9000, 32),  # more than is converted at a time
    (2, 20000, 10000),
]
SPECIAL = {
    "zeros": np.zeros(64),
    "negative zeros": np.full(64, -0.0),
    "zeros of both signs": np.resize([0.0, -0.0], 64),
    "constant": np.full(64, 0.37),
    "negative": -np.linspace(1, 2, 64),
    "as far on both sides": np.resize([-1.0, 0.5, 1.0, 0.1], 64),
    "as far on both sides, positive first": np.resize([1.0, 0.5, -1.0, 0.1], 64),
    "subnormal": np.linspace(-1e-40, 1e-40, 64),
    "smallest": np.resize([1.4e-45, -2.8e-45, 0], 64),
    "around tiny": np.linspace(-1, 3, 64) * np.finfo(np.float32).tiny * 16,
    "huge": np.linspace(-3.4e38, 3.4e38, 64),
    "outlier": np.r_[np.full(63, 1e-3), 1e3],
    "ties": (np.arange(64) % 31) / 2 - 4,
    "ties of an absmax of 127": np.r_[np.arange(63) - 31.5, 127],
}


def by_numpy(word: str, w: NDArray, granularity: Granularity) -> QuantizedTensor:
    """The reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        return formats.get(word).encode(w.astype(np.float32), granularity)


def assert_same(fast: QuantizedTensor | None, slow: QuantizedTensor) -> None:
    assert fast is not None
    for a, b in ((fast.codes, slow.codes), (fast.scales, slow.scales), (fast.zero_points, slow.zero_points)):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(
                np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8)
            )


@looped("n, k, block", SHAPES)
@every_word
def test_shapes(word: str, n: int, k: int, block: int) -> None:
    w = np.random.default_rng(n * k).standard_normal((n, k)).astype(np.float32)
    assert_same(_fast.encode(formats.get(word), w, Granularity(1, block)), by_numpy(word, w, Granularity(1, block)))


@looped("shape, axis", [((33, 70), 0), ((64, 64), 0), ((2, 40, 3), 1), ((5, 1), 0), ((1, 130), 0)])
@looped("dtype", DTYPES)
@every_word
def test_blocks_along_another_axis(word: str, dtype: np.dtype, shape: tuple[int, ...], axis: int) -> None:
    w = np.random.default_rng(6).standard_normal(shape).astype(dtype)
    for block in (1, 16, 32):
        blocks = Granularity(axis, block)
        assert_same(_fast.encode(formats.get(word), w, blocks), by_numpy(word, w, blocks))
        w.flat[-1] = np.inf
        assert _fast.encode(formats.get(word), w, blocks) is None
        w.flat[-1] = 1


@every_word
def test_what_is_not_in_order_in_memory(word: str) -> None:
    w = np.random.default_rng(2).standard_normal((70, 33)).astype(np.float32).T
    assert_same(_fast.encode(formats.get(word), w, Granularity(1, 32)), by_numpy(word, w, Granularity(1, 32)))


@looped("dtype", DTYPES)
@every_word
def test_every_float_type(word: str, dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    w = (rng.standard_normal((40, 300)) * 10.0 ** rng.uniform(-7, 4, (40, 1))).astype(dtype)
    assert_same(_fast.encode(formats.get(word), w, Granularity(1, 32)), by_numpy(word, w, Granularity(1, 32)))


@pytest.mark.parametrize("word", ["q8_0", "nf4"])
def test_every_number_of_float16(word: str) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]
    assert_same(
        _fast.encode(formats.get(word), numbers, Granularity(0, 16)), by_numpy(word, numbers, Granularity(0, 16))
    )


@looped("what", SPECIAL)
@every_word
def test_special_numbers(word: str, what: str) -> None:
    w = SPECIAL[what].astype(np.float32).reshape(2, 32)
    if formats.get(word).scale_type == np.float16 and what == "huge":
        w = w * np.float32(1e-34)
    with np.errstate(all="ignore"):
        for block in (16, 32):
            granularity = Granularity(1, block)
            assert_same(_fast.encode(formats.get(word), w, granularity), by_numpy(word, w, granularity))


@every_word
def test_many_numbers_of_many_sizes(word: str) -> None:
    rng = np.random.default_rng(3)
    size = 4 if formats.get(word).scale_type == np.float16 else 30
    w = (rng.standard_normal((2048, 256)) * 10.0 ** rng.uniform(-size, size, (2048, 1))).astype(np.float32)
    assert_same(_fast.encode(formats.get(word), w, Granularity(1, 64)), by_numpy(word, w, Granularity(1, 64)))


@looped("count", [1, 2, 3, 7, 1000])
@every_word
def test_any_number_of_threads(word: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(5).standard_normal((30, 100)).astype(np.float32)
    monkeypatch.setattr(native, "threads", lambda: ctypes.c_int32(count))
    assert_same(_fast.encode(formats.get(word), w, Granularity(1, 32)), by_numpy(word, w, Granularity(1, 32)))


@looped("bad", [np.nan, -np.nan, np.inf, -np.inf])
@looped("dtype", DTYPES)
@every_word
def test_what_is_not_finite_is_left_to_numpy(word: str, dtype: np.dtype, bad: float) -> None:
    for place in (0, 31, 99, 250, 299):
        w = np.ones((3, 100), dtype)
        w.flat[place] = bad
        assert _fast.encode(formats.get(word), w, Granularity(1, 32)) is None


def test_what_float32_does_not_hold_is_left_to_numpy() -> None:
    assert _fast.encode(formats.get("int4"), np.full((1, 32), 1e300), Granularity(1, 32)) is None


@looped("dtype", DTYPES)
@every_word
def test_nothing_behind_the_weight_is_read(word: str, dtype: np.dtype) -> None:
    for count in (1, 31, 33, 64, 100):
        w = before_a_wall(np.linspace(-1, 1, count).astype(dtype))
        assert_same(_fast.encode(formats.get(word), w, Granularity(0, 32)), by_numpy(word, w, Granularity(0, 32)))


def before_a_wall(array: NDArray) -> NDArray:
    """A copy whose last byte is the last readable one."""
    pages = -(-array.nbytes // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    wall = start + (pages - 1) * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    offset = (pages - 1) * mmap.PAGESIZE - array.nbytes
    copy = np.frombuffer(memory, array.dtype, array.size, offset)
    copy[:] = array
    return copy


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 101, (1 << 20) + 1])
@pytest.mark.parametrize("high_first", [False, True], ids=["low", "high"])
def test_nibbles(size: int, high_first: bool) -> None:
    codes = np.random.default_rng(size).integers(-8, 8, size).astype(np.int8)
    pack = (lambda: layouts.high_first(codes)) if high_first else (lambda: layouts.nibbles_low_first(codes))
    fast = pack()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        np.testing.assert_array_equal(fast, pack())
    assert fast.size == -(-size // 2)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (63, 65), (64, 64), (130, 7)], ids=str)
def test_transposed(shape: tuple[int, int]) -> None:
    codes = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(_fast.transposed(codes), codes.T)
    assert _fast.transposed(codes).flags.c_contiguous
    np.testing.assert_array_equal(_fast.transposed(codes.T), codes)  # not in order in memory

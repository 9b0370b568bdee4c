"""Decoding and index functions, compiled for the processor, against numpy: bit for bit, and element by element."""

from __future__ import annotations

import ctypes

import abi
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

TYPES = {"float16": (10, np.float16), "bfloat16": (16, ml_dtypes.bfloat16)}


def decode(library: ctypes.CDLL, format: str, type: int, codes: NDArray, zero: int) -> NDArray:
    """The bits that the kernels' decoder makes of 8 consecutive codes of a row."""
    c = codes.astype(np.uint64)
    if format == "int8":
        words = [sum(int(c[i + j]) << (8 * j) for j in range(4)) for i in (0, 4)]
    else:  # byte j: code j in the low nibble, code j + 4 in the high one
        words = [sum(int(c[j] | c[j + 4] << np.uint64(4)) << (8 * j) for j in range(4)), 0]
    made = (ctypes.c_uint16 * 8)()
    library.onnxq_emulated_decode(abi.FORMATS[format], type, (ctypes.c_uint32 * 2)(*words), zero, made)
    return np.array(made, np.uint16)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("format", abi.FORMATS)
def test_every_code_and_zero_point_becomes_the_nearest_16_bit_number(
    emulated: ctypes.CDLL, format: str, type: str
) -> None:
    number, dtype = TYPES[type]
    top = 256 if format == "int8" else 16
    zeros = range(0, top, 5) if format in ("int4", "int8") else [0]
    for zero in zeros:
        for first in range(0, top, 8):
            codes = (np.arange(first, first + 8) * (5 if format == "int8" else 1)) % top
            if format in ("int4", "int8"):
                wanted = (codes - zero).astype(dtype)
                assert np.array_equal(wanted.astype(np.int64), codes - zero), "16 bits hold every difference"
            else:
                wanted = abi.levels(format)[codes].astype(dtype)
            got = decode(emulated, format, number, codes, zero).view(dtype)
            assert np.array_equal(got.astype(np.float32), wanted.astype(np.float32)), (zero, codes)


@pytest.mark.parametrize("format", ["int4", "int8"])
def test_a_warp_reads_every_weight_of_a_step_once(emulated: ctypes.CDLL, format: str) -> None:
    wide = format == "int8"
    for step in (0, 1, 7):
        out = np.zeros((32, 2 if wide else 1, 16, 3), np.int64)
        emulated.onnxq_emulated_reads(abi.FORMATS[format], ctypes.c_int64(step), ctypes.c_void_p(out.ctypes.data))
        seen = [tuple(map(int, each)) for each in out.reshape(-1, 3)]
        if not wide:
            seen += [(tile, row, k + 4) for tile, row, k in seen]  # the high nibbles
        wanted = {(tile, row, step * 32 + k) for tile in (0, 1) for row in range(16) for k in range(32)}
        assert len(seen) == len(wanted) and set(seen) == wanted


@pytest.mark.parametrize("format", ["int4", "int8"])
def test_every_sector_that_a_warp_touches_is_used_whole(emulated: ctypes.CDLL, format: str) -> None:
    wide = format == "int8"
    out = np.zeros((32, 2 if wide else 1, 16, 3), np.int64)
    emulated.onnxq_emulated_reads(abi.FORMATS[format], ctypes.c_int64(3), ctypes.c_void_p(out.ctypes.data))
    tile, row, k = (out[..., i] for i in range(3))
    line = k // (4 if wide else 8)
    address = tile * 10**6 + line * 64 + row * 4 + k % 4
    for load in range(address.shape[1]):  # one instruction of the warp
        sectors, counts = np.unique(address[:, load].reshape(-1) // 32, return_counts=True)
        assert len(sectors) == 16 and np.all(counts == 32)
        assert np.all(address[:, load, 0] % 16 == 0), "each lane's 16 bytes are aligned"


@pytest.mark.parametrize("order", [0, 1, 2], ids=["int4", "table", "int8"])
def test_every_weight_meets_its_activation_and_lands_in_its_row(emulated: ctypes.CDLL, order: int) -> None:
    """The two mma of a step with symbols for numbers: which (row, k) of w is multiplied with which (k, column) of x."""
    at = (ctypes.c_int32 * 2)()

    def where(operand: int, lane: int, e: int) -> tuple[int, int]:
        emulated.onnxq_emulated_mma(operand, lane, e, at)
        return at[0], at[1]

    pair_k = [[emulated.onnxq_emulated_pair_k(order, p, e) for e in (0, 1)] for p in range(4)]
    assert sorted(k for pair in pair_k for k in pair) == list(range(8))
    for j in (0, 1):  # the two mma tiles of a warp's 32 rows
        products: dict[tuple[int, int], list[int]] = {}
        for half in (0, 1):
            a, b, rows, columns = {}, {}, {}, {}
            for lane in range(32):
                r, t = lane // 4, lane % 4
                for e in range(8):  # registers: pair 2 half of rows 2j and 2j + 1, then pair 2 half + 1
                    register = e // 2
                    k = 8 * t + pair_k[2 * half + register // 2][e % 2]
                    a[where(0, lane, e)] = (4 * r + 2 * j + register % 2, k)
                for e in range(4):
                    b[where(1, lane, e)] = (8 * t + pair_k[2 * half + e // 2][e % 2], r)
                    row, column = where(2, lane, e)
                    rows[row], columns[column] = 4 * r + 2 * j + e // 2, 2 * t + e % 2  # as the kernel stores it
            assert len(a) == 256 and len(b) == 128
            for row in range(16):
                for column in range(8):
                    for slot in range(16):
                        (n, k), (other_k, m) = a[row, slot], b[slot, column]
                        assert k == other_k and n == rows[row] and m == columns[column]
                        products.setdefault((n, m), []).append(k)
        assert len(products) == 16 * 8
        assert all(sorted(ks) == list(range(32)) for ks in products.values())


def test_division_by_multiplication_is_exact(emulated: ctypes.CDLL) -> None:
    numbers = np.unique(np.r_[np.arange(5000), np.random.default_rng(0).integers(0, 1 << 24, 500), (1 << 24) - 1])
    for d in range(16, 257, 16):
        near = np.r_[numbers, numbers // d * d, np.maximum(numbers // d * d - 1, 0)]
        assert [emulated.onnxq_emulated_divide(int(n), d) for n in near] == list(near // d)

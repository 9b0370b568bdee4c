"""Weights as tiles, what they stand for in float64, and the kernels behind their C ABI.

The bytes are written by the formula of docs/nodes.md, one index at a time, and by nobody else's code.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.formats import fp4, nf4
from onnxq.runtime import native

FORMATS = ("int4", "int8", "nf4", "fp4", "mxfp4")
#: Weights without codes and scales; by their numbers they are formats, too.
DENSE = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ALL = (*FORMATS, *DENSE)
#: (format, with zero points)
VARIANTS = [*((format, False) for format in FORMATS), ("int4", True), ("int8", True)]
SCALES = {"float32": np.float32, "float16": np.float16, "e8m0": np.uint8}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
LEVELS = {"nf4": nf4.LEVELS.astype(np.float64), "fp4": fp4.LEVELS.astype(np.float64), "mxfp4": E2M1}


class Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("M", "N", "K", "block")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scales", "zero_points", "bias", "y")),
        *((name, ctypes.c_int32) for name in ("format", "scale_type", "exact", "tile_rows", "threads")),
    )


@dataclass
class Weight:
    """codes [N, Kp], scales and zero points [N, Kp / block] as numbers; `zeros` None: the format's middle."""

    format: str
    K: int
    block: int
    codes: NDArray[np.uint8]  # of numbers uint16, their bits
    scales: NDArray
    zeros: NDArray[np.uint8] | None

    @property
    def N(self) -> int:
        return len(self.codes)

    @property
    def values(self) -> NDArray[np.float64]:
        """value(code) [N, K]."""
        codes = self.codes[:, : self.K]
        if self.format in DENSE:
            return codes.view(DENSE[self.format]).astype(np.float64)
        if self.format in LEVELS:
            return LEVELS[self.format][codes]
        middle = 8 if self.format == "int4" else 128
        zeros = np.full(self.scales.shape, middle) if self.zeros is None else self.zeros
        return codes.astype(np.float64) - self.spread(zeros)

    @property
    def scale_values(self) -> NDArray[np.float64]:
        """Scales [N, blocks] as they decode."""
        return 2.0 ** (self.scales - 127.0) if self.scales.dtype == np.uint8 else self.scales.astype(np.float64)

    @functools.cached_property
    def decoded(self) -> NDArray[np.float64]:
        """w [N, K]."""
        return self.values * self.spread(self.scale_values)

    def spread(self, of_blocks: NDArray) -> NDArray:
        """[N, K] from [N, blocks]."""
        return np.repeat(of_blocks, self.block, axis=1)[:, : self.K]

    @functools.cached_property
    def tiles(self) -> NDArray[np.uint8]:
        """The `weight` tensor."""
        n, k = np.indices(self.codes.shape)
        if self.format in DENSE:
            tiles = np.zeros((-(-self.N // 16), self.codes.shape[1] // 2, 16, 2), np.uint16)
            tiles[n // 16, k // 2, n % 16, k % 2] = self.codes
            return tiles.view(np.uint8)
        padded_k, lines = self.codes.shape[1], 4 if self.format == "int8" else 8
        tiles = np.zeros((-(-self.N // 16), padded_k // lines, 16, 4), np.uint8)
        if self.format == "int8":
            tiles[n // 16, k // 4, n % 16, k % 4] = self.codes
        else:
            shift = np.where(k % 8 < 4, 0, 4).astype(np.uint8)
            np.bitwise_or.at(tiles, (n // 16, k // 8, n % 16, k % 4), self.codes << shift)
        return tiles

    def by_tile(self, of_blocks: NDArray) -> NDArray:
        """[ceil(N / 16), blocks, 16] from [N, blocks]: the `scales` and the `zero_points` tensor."""
        made = np.zeros((-(-self.N // 16), of_blocks.shape[1], 16), of_blocks.dtype)
        n, b = np.indices(of_blocks.shape)
        made[n // 16, b, n % 16] = of_blocks
        return made


@functools.cache
def weight(
    format: str,
    N: int,
    K: int,
    block: int,
    *,
    scale: str = "float16",
    zeros: bool = False,
    seed: int = 0,
) -> Weight:
    """Random codes of every value; scales of both signs, near those of normal weights. Shared: do not change it."""
    rng = np.random.default_rng([seed, N, K, block])
    if format in DENSE:
        numbers = rng.standard_normal((N, -(-K // 32) * 32)) / np.sqrt(K)
        numbers[:, K:] = 0
        bits = numbers.astype(DENSE[format]).view(np.uint16)
        return Weight(format, K, 32, bits, np.ones((N, len(numbers[0]) // 32)), None)
    blocks = -(-K // block)
    codes = rng.integers(0, 256 if format == "int8" else 16, (N, blocks * block), np.uint8)
    z = rng.integers(0, 256 if format == "int8" else 16, (N, blocks), np.uint8) if zeros else None
    zero_code = {"int4": 8, "int8": 128, "nf4": 7}.get(format, 0)
    codes[:, K:] = zero_code if z is None else z[:, -1:]
    numbers = rng.uniform(0.5, 2, (N, blocks)) * rng.choice([-1, 1], (N, blocks)) / np.sqrt(K)
    scales = rng.integers(118, 130, (N, blocks)) if scale == "e8m0" else numbers
    return Weight(format, K, block, codes, scales.astype(SCALES[scale]), z)


def isas() -> list[str]:
    """Kernels this machine can run, best first; none where the library was not built."""
    if native.path() is None:
        return []
    found = ctypes.CDLL(str(native.path()))
    found.onnxq_isas.restype = ctypes.c_char_p
    return found.onnxq_isas().decode().split()


def problem(w: Weight, place: Callable[[NDArray], NDArray]) -> tuple[Problem, list[NDArray]]:
    """The part of a problem that describes the weight; its arrays, put where `place` wants them, must be kept."""
    zeros = None if w.zeros is None else place(w.by_tile(w.zeros))
    arrays = [place(w.tiles), place(w.by_tile(w.scales)[: 0 if w.format in DENSE else None])] + (
        [] if zeros is None else [zeros]
    )
    made = Problem(N=w.N, K=w.K, block=w.block, weight=address(arrays[0]), scales=address(arrays[1]))
    made.zero_points = address(zeros)
    made.format = ALL.index(w.format)
    types = [np.dtype(type) for type in SCALES.values()]
    made.scale_type = len(types) if w.format in DENSE else types.index(w.scales.dtype)
    return made, arrays


def matmul(
    isa: str,
    x: NDArray[np.float32],
    w: Weight,
    *,
    bias: NDArray[np.float32] | None = None,
    exact: bool = False,
    threads: int = 1,
    tile_rows: int = 0,
    place: Callable[[NDArray], NDArray] = np.ascontiguousarray,
) -> NDArray[np.float32]:
    """y [M, N] by the kernel `isa`."""
    made, arrays = problem(w, place)
    x, bias = place(x), None if bias is None else place(bias)
    y = place(np.full((len(x), w.N), np.nan, np.float32))
    made.M, made.exact, made.tile_rows = len(x), exact, tile_rows
    made.x, made.y, made.bias = address(x), address(y), address(bias)
    found = ctypes.CDLL(str(native.path()))
    assert found.onnxq_matmul(isa.encode(), ctypes.byref(made), ctypes.c_int32(threads)) == 0
    del arrays
    return y


def gather(w: Weight, rows: NDArray[np.int64], place: Callable[[NDArray], NDArray]) -> NDArray[np.float32]:
    """y [rows, K]."""
    made, arrays = problem(w, place)
    y = place(np.full((len(rows), w.K), np.nan, np.float32))
    rows = place(rows)
    found = ctypes.CDLL(str(native.path()))
    found.onnxq_gather(ctypes.byref(made), address(rows), ctypes.c_int64(len(rows)), address(y))
    del arrays
    return y


def address(array: NDArray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def exact_bound(x: NDArray, w: Weight, bias: NDArray | None = None) -> NDArray[np.float64]:
    """How far each y may lie from the float64 product when all is float32.

    A sum of n float32 numbers is off by at most n·u of the sum of their magnitudes, u = 2^-24, whatever the order
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2, to first order); each product has the
    roundings of value, scale and product besides. Two u of y itself come from the last rounding and the bias. 2^-140
    stands for what falls below the normal range.
    """
    terms = np.abs(x.astype(np.float64)) @ np.abs(w.decoded).T
    if bias is not None:
        terms = terms + np.abs(bias)
    return (w.K + 6) * 2.0**-24 * terms + 2.0**-140


def fast_bound(x: NDArray, w: Weight, bias: NDArray | None = None) -> NDArray[np.float64]:
    """The same with rounded activations and levels: the worst that `activations = fast` allows.

    int8 activations are off by at most half a step, amax / 254, of a block (kernels may cut blocks into smaller ones);
    levels rounded to int8 by scale / 254 times the largest of them; operands rounded to bfloat16 by 2^-9 each, which
    leaves 2^-8 and a little of each product. The bound is the sum of all three, as kernels differ in which they use.
    """
    missing = -x.shape[1] % w.block
    blocks = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, missing))).reshape(len(x), -1, w.block)
    half_step = np.repeat(blocks.max(axis=2) / 254, w.block, axis=1)[:, : w.K]
    largest = np.abs(w.spread(w.scale_values)) * (np.abs(LEVELS[w.format]).max() if w.format in LEVELS else 0)
    terms = np.abs(x.astype(np.float64)) @ (np.abs(w.decoded) * 1.01 * 2.0**-8 + largest / 254).T
    return half_step @ (np.abs(w.decoded) + largest / 254).T + terms + 2 * exact_bound(x, w, bias)


def product(x: NDArray, w: Weight, bias: NDArray | None = None) -> NDArray[np.float64]:
    """The float64 reference."""
    y = x.astype(np.float64) @ w.decoded.T
    return y if bias is None else y + bias

"""The C ABI of the GPU half (custom_ops/cuda/problem.h), weights in its layout, and the answer in float64 numpy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq import formats

FORMATS = {"int4": 0, "int8": 1, "nf4": 2, "fp4": 3, "mxfp4": 4}
TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, np.dtype(ml_dtypes.bfloat16): 16}
SCALES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint8): 2}
PATHS = {"auto": 0, "gemv": 1, "tensor": 2, "dequantize": 3, "direct": 4}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Matmul(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("M", "N", "K")),
        *((name, ctypes.c_int32) for name in ("block", "format", "type", "scale_type", "exact", "path")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scales", "zero_points", "bias", "y")),
    )


class Gather(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "N", "K")),
        *((name, ctypes.c_int32) for name in ("block", "format", "type", "scale_type", "index_bytes", "unused")),
        *((name, ctypes.c_void_p) for name in ("indices", "weight", "scales", "zero_points", "y")),
    )


def levels(format: str) -> NDArray:
    return E2M1 if format == "mxfp4" else formats.get(format).levels  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Weight:
    """Codes [N, K] with their scales and zero points [N, blocks], and the same as tiles.

    Rows behind N have scale 0 (E8M0: 2^-127), k behind K the code that decodes to zero.
    """

    format: str
    block: int
    codes: NDArray
    scales: NDArray
    zero_points: NDArray | None
    tiles: NDArray
    scale_tiles: NDArray
    zero_tiles: NDArray | None

    @property
    def values(self) -> NDArray:
        """scale · value(code) in float64, [N, K]."""
        k = np.arange(self.codes.shape[1]) // self.block
        return self.unscaled * decode_scales(self.scales)[:, k]

    @property
    def unscaled(self) -> NDArray:
        if self.format not in ("int4", "int8"):
            return levels(self.format).astype(np.float64)[self.codes]
        k = np.arange(self.codes.shape[1]) // self.block
        middle = 8 if self.format == "int4" else 128
        zero = middle if self.zero_points is None else self.zero_points.astype(np.int64)[:, k]
        return (self.codes.astype(np.int64) - zero).astype(np.float64)


def decode_scales(scales: NDArray) -> NDArray:
    if scales.dtype == np.uint8:
        return np.ldexp(1.0, scales.astype(np.int64) - 127)
    return scales.astype(np.float64)


def by_tile(rows: NDArray) -> NDArray:
    """[N, B] as [ceil(N / 16), B, 16], missing rows 0."""
    n, b = rows.shape
    padded = np.concatenate([rows, np.zeros((-n % 16, b), rows.dtype)])
    return np.ascontiguousarray(padded.reshape(-1, 16, b).transpose(0, 2, 1))


def pack(format: str, block: int, codes: NDArray, scales: NDArray, zero_points: NDArray | None = None) -> Weight:
    """The tiles that docs/nodes.md describes, element by element slow and plain."""
    n, k = codes.shape
    blocks = -(-k // block)
    if format in ("int4", "int8"):
        middle = 8 if format == "int4" else 128
        zeros = np.full((n, blocks), middle, np.uint8) if zero_points is None else zero_points
        fill = zeros[:, -1:]
    else:
        fill = np.full((n, 1), np.flatnonzero(levels(format) == 0)[0], np.uint8)
    padded = np.concatenate(
        [codes.astype(np.uint8), np.repeat(fill, blocks * block - k, axis=1).astype(np.uint8)], axis=1
    )
    padded = np.concatenate([padded, np.zeros((-n % 16, padded.shape[1]), np.uint8)])
    tiled = padded.reshape(-1, 16, padded.shape[1])
    if format == "int8":
        tiles = tiled.reshape(len(tiled), 16, -1, 4).transpose(0, 2, 1, 3)
    else:
        split = tiled.reshape(len(tiled), 16, -1, 2, 4)
        tiles = (split[..., 0, :] | split[..., 1, :] << 4).transpose(0, 2, 1, 3)
    zero_tiles = None if zero_points is None else by_tile(zero_points.astype(np.uint8))
    return Weight(format, block, codes, scales, zero_points, np.ascontiguousarray(tiles), by_tile(scales), zero_tiles)


def random_weight(
    n: int,
    k: int,
    format: str = "int4",
    block: int = 32,
    *,
    scale: type = np.float16,
    asymmetric: bool = False,
    seed: int = 0,
) -> Weight:
    rng = np.random.default_rng(seed)
    top = 256 if format == "int8" else 16
    shape = (n, -(-k // block))
    if scale is np.uint8:
        scales: NDArray = rng.integers(120, 130, shape, np.uint8)
    else:
        scales = (rng.uniform(0.5, 2, shape) / top * rng.choice([-1, 1], shape)).astype(scale)
    zero_points = rng.integers(0, top, shape).astype(np.uint8) if asymmetric else None
    return pack(format, block, rng.integers(0, top, (n, k)).astype(np.uint8), scales, zero_points)


def random_x(m: int, k: int, dtype: np.dtype, seed: int = 1) -> NDArray:
    return np.random.default_rng(seed).standard_normal((m, k)).astype(dtype)

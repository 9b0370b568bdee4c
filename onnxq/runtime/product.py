"""Products by packed weights through the compiled kernels, without onnxruntime."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from onnxq.runtime import native

#: Numbers of the C ABI (custom_ops/base/format.h).
INT4, SCALE_TYPES = 0, {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
TILE, SMALLEST, LARGEST = 16, 16, 256
#: Multiplications that are done before a second thread has started.
ALONE = 1 << 20


class _Problem(ctypes.Structure):
    """As `Problem` of custom_ops/cpu/kernel.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("M", "N", "K", "block")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scales", "zero_points", "bias", "y")),
        *((name, ctypes.c_int32) for name in ("format", "scale_type", "exact", "tile_rows", "threads")),
    )


def is_there() -> bool:
    """Whether there are kernels, of the interface that is spoken here."""
    found = native.library()
    return found is not None and found.onnxq_problem_size() == ctypes.sizeof(_Problem)


def multiply_int4(
    x: NDArray[np.float32],
    tiles: NDArray[np.uint8],
    scales: NDArray,
    n: int,
    block: int,
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """y [M, N] = x [M, K] · wᵀ + bias, x and all sums in float32: nothing is rounded besides.

    Args:
        tiles: the codes as `layouts.onnxq_tiles` lays them out.
        scales: as `layouts.onnxq_scales`, float32 or float16.
        n: rows of the weight.
        block: weights of a row that share a scale, a multiple of 16 up to 256.
        bias: [N].

    Raises:
        ValueError: arrays of other shapes or types than these.
    """
    if x.ndim != 2 or x.dtype != np.float32 or n < 1 or not x.shape[1]:
        raise ValueError(f"a product takes a matrix of float32 with columns, not {x.dtype} of shape {list(x.shape)}")
    if not SMALLEST <= block <= LARGEST or block % SMALLEST:
        raise ValueError(f"kernels read blocks of a multiple of 16 up to 256, not of {block}")
    rows, blocks = -(-n // TILE), -(-x.shape[1] // block)
    wanted = [("tiles", tiles, (rows, blocks * block // 8, TILE, 4)), ("scales", scales, (rows, blocks, TILE))]
    if bias is not None:
        wanted.append(("bias", bias, (n,)))
    for what, array, shape in wanted:
        if array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(f"the {what} of a product are of shape {list(array.shape)}, where {list(shape)} belongs")
    if tiles.dtype != np.uint8 or scales.dtype not in SCALE_TYPES or (bias is not None and bias.dtype != np.float32):
        raise ValueError(f"tiles are uint8, scales float32 or float16, not {tiles.dtype} and {scales.dtype}")
    x = np.ascontiguousarray(x)
    y = np.empty((len(x), n), np.float32)
    if not y.size:
        return y
    given: dict[str, NDArray | None] = {"x": x, "weight": tiles, "scales": scales, "bias": bias, "y": y}
    problem = _Problem(M=len(x), N=n, K=x.shape[1], block=block, format=INT4, exact=1)
    problem.scale_type = SCALE_TYPES[scales.dtype]
    for name, each in given.items():
        setattr(problem, name, None if each is None else each.ctypes.data)
    found = native.library()
    threads = native.threads() if len(x) * n * x.shape[1] > ALONE else 1
    if found is None or found.onnxq_matmul(None, ctypes.addressof(problem), threads):
        raise ValueError("there is no kernel for this product here")
    return y

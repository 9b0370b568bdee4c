"""The compiled library, where it was built; everything it does numpy does too, only slower."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ABI_VERSION = 5
Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library beside this file, or None, with one warning, if the package was installed without a compiler."""
    found = _find()
    if found is not None:
        return found[1]
    warnings.warn(
        "onnxq was installed without its compiled library (no C++ compiler was found): encoding weights and "
        "calibrating are slower, and files for target onnxq run without their kernels. Install a compiler and "
        "reinstall onnxq to have it.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


@functools.cache
def path() -> Path | None:
    """Where the library lies, or None."""
    found = _find()
    return None if found is None else found[0]


def cuda_path() -> Path | None:
    """Where the library for onnxruntime's CUDA provider lies, or None."""
    return next(iter(sorted(Path(__file__).parent.glob("*onnxq_cuda*"))), None)


def _find() -> tuple[Path, ctypes.CDLL] | None:
    """The library that ONNXQ_LIBRARY names, as a build with sanitizers, or the one beside this file."""
    named = os.environ.get("ONNXQ_LIBRARY")
    for path in [Path(named)] if named else sorted(Path(__file__).parent.glob("*onnxq_native*")):
        found = ctypes.CDLL(str(path))
        found.onnxq_abi_version.restype = ctypes.c_int32
        if found.onnxq_abi_version() == ABI_VERSION:
            return path, found
    return None


def encode_affine_blocks(
    w: Floats, axis: int, block: int, qmax: int, factors: Floats
) -> tuple[Codes, Floats, Codes] | None:
    """(codes, scales, zero points) of finite weights in blocks along `axis`.

    Args:
        factors: of the prescribed scale, of which the one with the least squared error is taken; none: itself.

    Returns:
        None where the library is not there.
    """
    found = library()
    if found is None:
        return None
    w, sizes, codes, scales = _arrays(w, axis, block)
    zeros = np.empty(scales.shape, np.uint8)
    found.onnxq_encode_affine_blocks(
        pointer(w),
        *sizes,
        ctypes.c_int32(qmax),
        *_vector(factors),
        pointer(codes),
        pointer(scales),
        pointer(zeros),
        threads(),
    )
    return codes, scales, zeros


def encode_level_blocks(
    w: Floats, axis: int, block: int, levels: Floats, middles: Floats, order: Codes, factors: Floats
) -> tuple[Codes, Floats] | None:
    """(codes, absmax scales) of finite weights in blocks along `axis`, codes indexing 16 levels.

    Args:
        levels: ascending; `middles` lie between neighbours, `order` gives the code of each level.
        factors: as for `encode_affine_blocks`.
    """
    found = library()
    if found is None or len(levels) != 16:
        return None
    w, sizes, codes, scales = _arrays(w, axis, block)
    tables = [np.ascontiguousarray(table) for table in (levels, middles, order)]
    found.onnxq_encode_level_blocks(
        pointer(w),
        *sizes,
        *(pointer(table) for table in tables),
        *_vector(factors),
        pointer(codes),
        pointer(scales),
        threads(),
    )
    return codes, scales


def _arrays(w: Floats, axis: int, block: int) -> tuple[Floats, list[ctypes.c_int64], Codes, Floats]:
    """The weight in C order, its sizes (outer, k, inner, block), and room for codes and scales."""
    w = np.ascontiguousarray(w, np.float32)
    k, before, behind = w.shape[axis], w.shape[:axis], w.shape[axis + 1 :]
    sizes = [ctypes.c_int64(n) for n in (math.prod(before), k, math.prod(behind), block)]
    return w, sizes, np.empty(w.shape, np.uint8), np.empty((*before, -(-k // block), *behind), np.float32)


def _vector(array: Floats) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
    return pointer(array), ctypes.c_int64(array.size)


def pointer(array: NDArray | None) -> ctypes.c_void_p:
    """Where an array lies, as the library takes it; None is its null."""
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> ctypes.c_int32:
    """How many the library is to use."""
    return ctypes.c_int32(cores())

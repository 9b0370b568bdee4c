"""The compiled library, where it was built; everything it does numpy does too, only slower."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.boundary import warn
from onnxq.errors import OnnxqError
from onnxq.files import guard, limits

ABI_VERSION = 6
Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


class _Array:
    """A parameter that takes where an array lies: the array, which has to be in C order; None is its null."""

    @classmethod
    def from_param(cls, array: NDArray | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if array is None else array.ctypes.data)


_I32, _I64, _F64, _ANY = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
#: What every function that is called gives and takes, as it is declared in custom_ops/. Integers are given as they are.
_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "onnxq_encode_affine_blocks": (None, (_Array, *[_I64] * 4, _I32, _Array, _I64, _Array, _Array, _Array, _I32)),
    "onnxq_encode_level_blocks": (None, (_Array, *[_I64] * 4, *[_Array] * 4, _I64, _Array, _Array, _I32)),
    "onnxq_encode_rows": (_I32, (_Array, _I32, *[_I64] * 4, _I32, _I32, *[_Array] * 5, _I32)),
    "onnxq_pack_nibbles": (None, (_Array, _I64, _I32, _I32, _Array, _I32)),
    "onnxq_matmul": (_I32, (ctypes.c_char_p, _ANY, _I32)),
    "onnxq_problem_size": (_I64, ()),
    "onnxq_transpose": (None, (_Array, _I64, _I64, _Array, _I32)),
    "onnxq_summary_new": (_I64, (_I32, _ANY)),
    "onnxq_summary_free": (None, (_I64,)),
    "onnxq_summary_update": (None, (_I64, _Array, _I32, _ANY, _I64)),
    "onnxq_summary_end_batch": (None, (_I64, _F64)),
    "onnxq_summary_numbers": (None, (_I64, _ANY)),
    "onnxq_summary_arrays": (None, (_I64, _Array, _Array, _Array)),
    "onnxq_summary_restore": (None, (_I64, _ANY, _Array, _Array, _Array)),
    "onnxq_tile_rows": (_I32, (_I32, _I32)),
    "onnxq_give_tile_rows": (None, (_I32, _I32, _I32)),
    "onnxq_isas": (ctypes.c_char_p, ()),
    "onnxq_peak": (_F64, (ctypes.c_char_p, _I32)),
    "onnxq_read_seconds": (_F64, (_Array, _I64, _I32)),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled library, or None, with one warning that says why there is none.

    Raises:
        OnnxqError: `ONNXQ_LIBRARY` names a file that is no such library.
    """
    found = _find()
    if isinstance(found, str):
        warn(
            f"{found}: encoding weights and calibrating are slower, and files for target onnxq run without their "
            "kernels. Install a compiler and reinstall onnxq to have it."
        )
        return None
    return found[1]


@functools.cache
def path() -> Path | None:
    """Where the library lies, or None."""
    found = _find()
    return None if isinstance(found, str) else found[0]


def cuda_path() -> Path | None:
    """Where the library for onnxruntime's CUDA provider lies, or None."""
    return next(_built("onnxq_cuda"), None)


@functools.cache
def _find() -> tuple[Path, ctypes.CDLL] | str:
    """The library that ONNXQ_LIBRARY names, as a build with sanitizers, or this package's; or what is wrong."""
    named = os.environ.get("ONNXQ_LIBRARY")
    if named:
        path = Path(named).absolute()  # the system looks for a name without a folder in folders of its own
        limits.require_file(path, OnnxqError, "ONNXQ_LIBRARY: ")  # a pipe would be waited for
        found = _load(path)
        if isinstance(found, str):
            raise OnnxqError(f"ONNXQ_LIBRARY: {found}")
        guard.remember([path], for_good=True)
        return path, found
    problem = "onnxq was installed without its compiled library (no C++ compiler was found)"
    for path in _built("onnxq_native"):
        found = _load(path)
        if not isinstance(found, str):
            return path, found
        problem = found
    return problem


def _built(stem: str) -> Iterator[Path]:
    """Files in this package; then, as the sources of a checkout hide the installed package, those in that."""
    folders = [Path(__file__).parents[1]]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        folders.append(Path(str(importlib.metadata.distribution("onnxq").locate_file("onnxq"))))
    for folder in folders:
        yield from sorted(folder.glob(f"*{stem}*"))


def _load(path: Path) -> ctypes.CDLL | str:
    """The library in a file, or a sentence that says why it is none of this package's."""
    try:
        found = ctypes.CDLL(str(path))
        found.onnxq_abi_version.restype = ctypes.c_int32
    except (OSError, AttributeError, UnicodeDecodeError) as error:  # the last of a name that is no text
        return f"'{path}' is not onnxq's compiled library ({error})"
    version = found.onnxq_abi_version()
    if version == ABI_VERSION:
        for name, (result, parameters) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, parameters
        return found
    return f"'{path}' was compiled for another version of onnxq (its interface is {version}, this one's {ABI_VERSION})"


def encode_affine_blocks(
    w: Floats, axis: int, block: int, qmax: int, factors: Floats
) -> tuple[Codes, Floats, Codes] | None:
    """(codes, scales, zero points) of finite weights in blocks along `axis`.

    Args:
        factors: of the prescribed scale, of which the one with the least squared error is taken; none: itself.

    Returns:
        None where the library is not there.

    Raises:
        ValueError: there is no such axis, block or code.
    """
    found = library()
    if found is None:
        return None
    if not 1 <= qmax <= 255:
        raise ValueError(f"codes 0…{qmax} are not those of one byte")
    w, sizes, codes, scales = _arrays(w, axis, block)
    zeros = np.empty(scales.shape, np.uint8)
    found.onnxq_encode_affine_blocks(w, *sizes, qmax, *_vector(factors), codes, scales, zeros, threads())
    return codes, scales, zeros


def encode_level_blocks(
    w: Floats, axis: int, block: int, levels: Floats, middles: Floats, order: Codes, factors: Floats
) -> tuple[Codes, Floats] | None:
    """(codes, absmax scales) of finite weights in blocks along `axis`, codes indexing 16 levels.

    Args:
        levels: ascending; `middles` lie between neighbours, `order` gives the code of each level.
        factors: as for `encode_affine_blocks`.

    Returns:
        None where the library is not there, or there are not 16 levels.

    Raises:
        ValueError: there is no such axis or block, or the tables do not fit each other.
    """
    found = library()
    if found is None or len(levels) != 16:
        return None
    types = [np.dtype(t) for t in (np.float32, np.float32, np.uint8)]
    if [(t.shape, t.dtype) for t in (levels, middles, order)] != list(zip([(16,), (15,), (16,)], types, strict=True)):
        raise ValueError("a codebook has 16 levels and 15 middles of float32, and the order of 16 codes")
    w, sizes, codes, scales = _arrays(w, axis, block)
    tables = [np.ascontiguousarray(table) for table in (levels, middles, order)]
    found.onnxq_encode_level_blocks(w, *sizes, *tables, *_vector(factors), codes, scales, threads())
    return codes, scales


def _arrays(w: Floats, axis: int, block: int) -> tuple[Floats, list[int], Codes, Floats]:
    """The weight in C order, its sizes (outer, k, inner, block), and room for codes and scales."""
    w = np.ascontiguousarray(w, np.float32)
    if not 0 <= axis < w.ndim or block < 1:
        raise ValueError(f"axis {axis} of {w.ndim} dimensions cannot be cut into blocks of {block}")
    block = min(block, max(1, w.shape[axis]))
    k, before, behind = w.shape[axis], w.shape[:axis], w.shape[axis + 1 :]
    sizes = [math.prod(before), k, math.prod(behind), block]
    return w, sizes, np.empty(w.shape, np.uint8), np.empty((*before, -(-k // block), *behind), np.float32)


def _vector(array: Floats) -> tuple[Floats, int]:
    if array.dtype != np.float32 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"factors are a vector of float32, not {array.dtype} of shape {list(array.shape)}")
    return array, array.size


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """How many the library is to use."""
    return cores()

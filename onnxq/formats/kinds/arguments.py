"""What callers hand in, made sure of at the door: arrays of numbers, and of the sizes that belong together.

A mistake in a call is a ValueError of one sentence. Nothing behind these doors, compiled code least of all, sees an
axis that is not there or an array that is too short.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from onnxq.errors import BadModel, first_line

#: What a weight may be decoded to.
FLOATS = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
#: Most dimensions that numpy has.
AXES = 64


def numbers(w: ArrayLike, what: str = "weight") -> NDArray:
    """An array, or nested lists, of real numbers as an array; integers and truth values become float32.

    Raises:
        ValueError: texts, complex numbers, objects, masked elements, or rows of unlike lengths.
    """
    x = array(w, what)
    if x.dtype.kind == "f":
        # In this machine's order of bytes, and none wider than what everything here computes in.
        return x.astype(x.dtype.newbyteorder("=") if x.itemsize <= 8 else np.float64, copy=False)
    if x.dtype.kind == "V" and x.dtype.names is None and np.can_cast(x.dtype, np.float64):  # bfloat16, float8
        return x
    if x.dtype.kind not in "iub":
        raise ValueError(f"the {what} is an array of {x.dtype}, not of real numbers")
    return x.astype(np.float32)


def is_masked(w: object, above: tuple[object, ...] = ()) -> bool:
    """Whether it has masked elements, or a sequence in it has: what stands in their places means nothing.

    Args:
        above: the sequences that it lies in. No array of numpy has more axes than `AXES`.

    Raises:
        ValueError: a sequence holds itself.
    """
    if isinstance(w, (float, int, str, bytes)):  # most of what lists hold, and what holds itself
        return False
    if isinstance(w, Sequence):
        if any(each is w for each in above):
            raise ValueError(f"a {type(w).__name__} that holds itself is no array")
        return len(above) < AXES and any(is_masked(each, (*above, w)) for each in w)
    return isinstance(w, np.ma.MaskedArray) and bool(np.ma.is_masked(w))


def untracked(w: Any, depth: int = 0) -> Any:
    """`w`; of torch's tensors, in lists as well, those that numpy takes."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)  # not there yet while somebody imports it
    if not isinstance(kind, type):
        return w
    if isinstance(w, kind):
        return _taken(w)
    if isinstance(w, (list, tuple)) and depth < AXES and any(isinstance(each, (kind, list, tuple)) for each in w):
        return [untracked(each, depth + 1) for each in w]
    return w


def _taken(w: Any) -> Any:
    """A tensor without gradients and signs that are still to come, in this memory, bfloat16 as float32."""
    w = w.detach().resolve_conj().resolve_neg().cpu()
    return w.float() if w.dtype == sys.modules["torch"].bfloat16 else w


def array(w: ArrayLike, what: str) -> NDArray:
    """`w` as an array.

    Raises:
        ValueError: it is none, or elements of it are masked.
    """
    if is_masked(w):  # or holds itself
        raise ValueError(f"the {what} has masked elements, for which nothing stands")
    try:
        return np.asarray(untracked(w))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"the {what} is no array of numbers: {first_line(error)}") from None


def as_float(w: NDArray[np.float32], dtype: DTypeLike) -> NDArray:
    """`w` rounded to another floating-point type, half to even; itself where that is float32.

    Raises:
        BadModel: a finite number would become infinite.
        ValueError: a type that is none of float16, bfloat16, float32 and float64.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = np.dtype(object)
    if wanted not in FLOATS:
        raise ValueError(f"a weight is float16, bfloat16, float32 or float64, not {dtype!r}")
    with np.errstate(over="ignore"):
        x = w.astype(wanted, copy=False)
    if wanted.itemsize == 2 and not np.isfinite(x).all() and np.isfinite(w).all():
        largest = float(np.max(np.abs(w)))
        raise BadModel(f"a weight of magnitude {largest:g} does not fit {wanted.name}; choose a wider type")
    return x


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front; negative ones count from the back, as numpy has it.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"there is no axis {axis} in an array of {rank} dimensions")
    return axis % rank


def whole(number: object, what: str) -> int:
    """An integer of any type, as Python's own.

    Raises:
        ValueError: it is none.
    """
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} is {number!r}, not an integer") from None


def count(shape: Sequence[int]) -> int:
    """Elements of an array of `shape`.

    Raises:
        ValueError: an axis of less than none.
    """
    if any(size < 0 for size in shape):
        raise ValueError(f"no array has the shape {list(shape)}")
    return math.prod(shape)


def require_shape(what: str, array: NDArray, shape: Sequence[int]) -> None:
    """Refuse an array of another shape.

    Raises:
        ValueError: with both shapes.
    """
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"the {what} have the shape {list(array.shape)}, where {list(shape)} belongs")


def require_size(what: str, array: NDArray, size: int) -> None:
    """Refuse an array of another number of elements.

    Raises:
        ValueError: with both numbers.
    """
    if array.size != size:
        raise ValueError(f"there are {array.size} {what}, where {size} belong")


def raw(what: str, data: ArrayLike, size: int | None = None) -> NDArray[np.uint8]:
    """An array of bytes, `size` of them.

    Raises:
        ValueError: it is of another type or size.
    """
    array = np.asarray(data)
    if array.dtype != np.uint8:
        raise ValueError(f"the {what} are of type {array.dtype}, not uint8")
    if size is not None:
        require_size(f"bytes of {what}", array, size)
    return array


def present(array: NDArray | None, what: str) -> NDArray:
    """What a weight must have for what is asked of it.

    Raises:
        ValueError: it has none.
    """
    if array is None:
        raise ValueError(f"the weight has no {what}")
    return array

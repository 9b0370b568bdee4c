"""Labels as arrays that torch takes, with nothing lost on the way."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnxq.errors import BadData
from onnxq.runtime.own_functions import shown


def labels_of(found: object, name: str) -> NDArray:
    """Labels, in the shape that they have, as numbers that torch has and computes with, in this machine's byte order.

    Whole numbers without a sign are int64, but for those of 8 bits; floats of more than 64 bits are float64; all others
    stay of their own type.

    Args:
        name: of the array, for messages.

    Raises:
        BadData: they are no numbers, or one is beyond what its type in torch holds.
    """
    x = np.asarray(found)
    kind, size = x.dtype.kind, x.dtype.itemsize
    if (
        kind not in "iubf" or x.dtype.type.__module__ != np.__name__
    ):  # one of ml_dtypes says that it is a float of numpy
        example = "".join(f", as in {shown(value)}" for value in x.reshape(-1)[:1].tolist())
        raise BadData(f"the labels '{name}' are of type {x.dtype}{example}; give classes or numbers")
    return fitting(x, "i8" if kind == "u" and size > 1 else f"{kind}{min(size, 8)}", name)


def fitting(labels: NDArray, dtype: DTypeLike, name: str) -> NDArray:
    """Numbers as others of the same kind, or with a sign. What is not finite stays so.

    Args:
        name: of the array, for messages.

    Raises:
        BadData: one of them is beyond what `dtype` holds.
    """
    wanted = np.dtype(dtype)
    lost = np.zeros(labels.shape, bool)
    if wanted.kind == "f":
        lost = np.isfinite(labels) & (np.abs(labels) > np.finfo(wanted).max)
    elif labels.dtype.kind == "u":
        lost = labels > np.iinfo(wanted).max
    if lost.any():
        value = str(labels[lost][0])  # format makes a float64 of it
        raise BadData(f"the labels '{name}' hold {value}, which does not fit {wanted}")
    return labels.astype(wanted, copy=False)

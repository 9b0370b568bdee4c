"""Shared by schemes that quantize columns in the order of their importance (act-order)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadModel


def column_order(where: str, index: NDArray, k: int, groups: int, group: int) -> NDArray[np.int64] | None:
    """The columns sorted by the group that `index` says each belongs to; None: they lie so.

    Args:
        where: the name of the tensor.
        index: [k].
        group: inputs of each group but the last, which has what is left.

    Raises:
        BadModel: it is no such thing.
    """
    if index.dtype.kind not in "iu" or index.shape != (k,):
        raise BadModel(f"'{where}' is not one group for each of {k} inputs")
    if index.size and not 0 <= index.min() <= index.max() < groups:
        raise BadModel(f"'{where}' names groups without scales")
    sizes = np.bincount(index, minlength=groups)
    if (sizes[:-1] != group).any() or sizes[-1] != k - group * (groups - 1):
        raise BadModel(f"'{where}' has groups of unlike sizes, from {sizes.min()} to {sizes.max()} inputs")
    order = np.argsort(index, kind="stable")
    return None if (order == np.arange(k)).all() else order

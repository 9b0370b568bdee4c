"""Shared by schemes whose codes lie one in a byte: integers and float8, with scales of any shape beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints.stored import Stored, group_of, integers, of_type, real, require_near
from onnxq.errors import BadModel
from onnxq.formats import E8M0, Granularity, QuantizedTensor


def of_rows(source: str, scales: NDArray, n: int) -> NDArray:
    """Scales of the tensor, of its channels or groups, as [n, groups].

    Raises:
        BadModel: they are none of these.
    """
    if scales.size == 1:
        return np.broadcast_to(scales.reshape(1, 1), (n, 1))
    if scales.ndim == 1 and len(scales) == n:
        return scales.reshape(n, 1)
    if scales.ndim == 2 and len(scales) == n and scales.size:
        return scales
    raise BadModel(f"'{source}' has scales of shape {list(scales.shape)}, which are none of {n} outputs")


def bytes_(
    source: str,
    codes: Callable[[], NDArray],
    scales: Callable[[], NDArray],
    zeros: Callable[[], NDArray] | None,
    bits: int = 8,
    group: int | None = None,
    **rest: Any,
) -> Stored:
    """w = scale · (code − zero) of int8 codes and zeros [out, in].

    Args:
        bits: of codes, if they all are that short.
        group: inputs that share a scale, as the file says.

    Raises:
        BadModel: scales or zeros do not fit.
    """
    found = codes()
    (n, k), middle = found.shape, 1 << (bits - 1)
    if bits < 8 and not -middle <= found.min(initial=0) <= found.max(initial=0) < middle:
        return bytes_(source, codes, scales, zeros, group=group, **rest)
    groups = of_rows(source, scales(), n).shape[1]

    def points() -> NDArray:
        assert zeros is not None
        found = of_rows(source, zeros(), n)
        if found.dtype.kind not in "iu":
            raise BadModel(f"the zero points of '{source}' are of type {found.dtype}, not of integers")
        if found.shape[1] not in (1, groups):
            raise BadModel(f"'{source}' has {groups} scales a row and {found.shape[1]} zero points")
        require_near(source, found)
        return np.broadcast_to(found, (n, groups)).astype(np.int64) + middle

    return integers(
        source,
        bits,
        group_of(source, k, groups, group),
        lambda: np.ascontiguousarray(codes()).view(np.uint8) + np.uint8(middle),
        lambda: of_rows(source, scales(), n),
        None if zeros is None else points,
        (n, k),
        **rest,
    )


def float8(
    source: str,
    codes: Callable[[], NDArray],
    scales: Callable[[], NDArray],
    block: tuple[int | None, int | None] = (None, None),
    **rest: Any,
) -> Stored:
    """w = scale · code of float8 codes [out, in]; scales of the tensor, channels, groups or squares.

    Args:
        block: outputs and inputs that share a scale, as the file says.

    Raises:
        BadModel: scales do not fit, or a number is not finite.
    """
    found = of_type(source, codes(), ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    if not np.isfinite(found).all():
        raise BadModel(f"'{source}' holds numbers that are not finite")
    format = next(each for each in map(formats.get, formats.names()) if each.code_type == found.dtype)
    n, k = found.shape

    def steps() -> NDArray[np.float32]:
        raw = scales()
        raw = raw.view(E8M0) if raw.dtype == np.uint8 else raw
        if raw.ndim == 2 and len(raw) < n and raw.size > 1:  # squares
            raw = np.repeat(raw, group_of(source, n, len(raw), block[0], "outputs"), axis=0)[:n]
        return real(f"scales of {source}", of_rows(source, raw, n)).astype(np.float32)

    groups = steps().shape[1]
    group = group_of(source, k, groups, block[1])
    granularity = Granularity(0) if groups == 1 else Granularity(1, group)

    def read() -> QuantizedTensor:
        made = steps()
        return QuantizedTensor(format, granularity, np.ascontiguousarray(codes()), made[:, 0] if groups == 1 else made)

    return Stored(source, (n, k), format, granularity, read, False, **rest)

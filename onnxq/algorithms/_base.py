"""Shared by the algorithms: formats that store the scales of another one in a few bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor, ScaleArray

Quantize = TypeVar("Quantize", bound=Callable[..., QuantizedTensor])


def base_first(quantize: Quantize) -> Quantize:
    """The same for formats with a `base` too: all groups in that first, then their scales.

    Codes for the scales that are stored then are chosen anew where data choose them, else they are the nearest.
    """

    @functools.wraps(quantize)
    def any_format(
        w: FloatArray,
        format: Format,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
        **by_data: Any,
    ) -> QuantizedTensor:
        base = format.base
        if base is None:
            return quantize(w, format, granularity, scales, zero_points, **by_data)
        by_data.pop("half_scales", None)  # which are scales of one level

        def again(stored: ScaleArray, offsets: CodeArray | None) -> QuantizedTensor:
            if by_data:
                return quantize(w, base, granularity, stored, offsets, **by_data)
            return base.encode(w, granularity, stored, offsets)

        return format.nest(quantize(w, base, granularity, scales, zero_points, **by_data), again)

    return cast(Quantize, any_format)

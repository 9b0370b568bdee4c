"""A weight as arrays that take exactly `QuantizedTensor.nbytes`, whatever its format: to keep it, and to count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.nested import NestedScales, unnest
from onnxq.formats.kinds.super_blocks import StoredScales, sharing
from onnxq.layouts._bits import pack_codes, unpack_codes


def compact(q: QuantizedTensor) -> dict[str, NDArray]:
    """`codes` and integer `zero_points` as a stream of bits; `scales` and `minima`, or the parts of nested scales."""
    parts: dict[str, NDArray] = {"codes": pack_codes(q.codes, q.format.bits)}
    if q.zero_points is not None and q.zero_points.dtype == q.codes.dtype:
        parts["zero_points"] = pack_codes(q.zero_points, q.format.bits)
    elif q.zero_points is not None and not isinstance(q.nested, StoredScales):
        parts["minima"] = q.zero_points
    if isinstance(q.nested, StoredScales):
        for word, stored in (("scale", q.nested.scales), ("minimum", q.nested.minima)):
            if stored is not None:
                found = compact(stored)
                parts |= {f"{word}_codes": found["codes"], f"{word}_factors": found["scales"]}
    elif q.nested is not None:
        parts |= {"scale_codes": q.nested.codes, "factors": q.nested.factors, "offset": np.array(q.nested.offset)}
    elif q.scales is not None:
        parts["scales"] = q.scales
    return parts


def from_compact(
    format: Format, granularity: Granularity, shape: Sequence[int], parts: Mapping[str, NDArray]
) -> QuantizedTensor:
    """The weight of `shape` that `compact` took apart.

    Args:
        format, granularity, shape: of the weight.
        parts: by name, as `compact` returns them.

    Raises:
        ValueError: a part is missing, or of another size than `format`, `granularity` and `shape` give it.
    """
    shape, scale_shape = tuple(shape), granularity.scale_shape(shape)
    needed = ["codes"]
    if format.stored_scales is not None:
        needed += ["scale_codes", "scale_factors", *["minimum_codes", "minimum_factors"] * format.has_minimum]
    elif "scale_codes" in parts:
        needed += ["factors", "offset"]
    if missing := [name for name in needed if name not in parts]:
        raise ValueError(f"the parts {', '.join(parts)} lack {', '.join(missing)}")
    codes = unpack_codes(parts["codes"], format.bits, shape, format.code_type)
    zeros = parts.get("minima")
    if "zero_points" in parts:
        zeros = unpack_codes(parts["zero_points"], format.bits, scale_shape, format.code_type)
    if format.stored_scales is not None:
        stored = StoredScales(
            _stored(format, "scale", granularity, scale_shape, parts),
            _stored(format, "minimum", granularity, scale_shape, parts) if format.has_minimum else None,
        )
        return QuantizedTensor(format, granularity, codes, *stored.values, stored)
    if "scale_codes" not in parts:
        return QuantizedTensor(format, granularity, codes, parts.get("scales"), zeros)
    offset = np.float32(np.asarray(parts["offset"]).item())
    nested = NestedScales(parts["scale_codes"], parts["factors"], offset, format.nested_block)
    return QuantizedTensor(format, granularity, codes, unnest(nested, granularity, shape), zeros, nested)


def _stored(
    format: Format, word: str, granularity: Granularity, shape: tuple[int, ...], parts: Mapping[str, NDArray]
) -> QuantizedTensor:
    """The scales, or the minima, of `shape`, of a weight in a format of two levels."""
    kind = format.stored_scales if word == "scale" else format.stored_minima
    assert kind is not None
    return from_compact(
        kind, sharing(format, granularity), shape, {"codes": parts[f"{word}_codes"], "scales": parts[f"{word}_factors"]}
    )

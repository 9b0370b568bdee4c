"""bitsandbytes.

    NAME.weight uint8 [out · in / 2, 1], high nibble first, NAME.weight.absmax, NAME.weight.quant_map [16],
    NAME.weight.quant_state.bitsandbytes__nf4 (or __fp4) uint8, JSON        4 bits; blocks counted through the rows
        NAME.weight.nested_absmax, NAME.weight.nested_quant_map [256]       where absmax is uint8, quantized once more
    NAME.weight int8 [out, in], NAME.SCB [out], weight_format               8 bits: w = code · SCB / 127

Source: bitsandbytes 0.50's `QuantState.as_dict` and `Linear8bitLt`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.stored import (
    Layer,
    Stored,
    bias_of,
    integers,
    key,
    names_with,
    of_shape,
    of_type,
    optional,
    real,
    require_alone,
    required,
)
from onnxq.errors import BadModel
from onnxq.files import limits
from onnxq.formats import Granularity, NestedScales, QuantizedTensor, dynamic_map

STATE = "weight.quant_state.bitsandbytes__"
PARTS = ("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", "bias")
BYTES = ("weight", "SCB", "weight_format", "bias")
#: A longer description is none.
LONGEST = 1 << 16


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those with a description of 4-bit weights, or with SCB."""
    for word in ("nf4", "fp4"):
        for name in names_with(checkpoint, STATE + word):
            tensors = tuple(key(name, part) for part in (*PARTS, STATE + word))
            yield Layer(name, "bitsandbytes", tensors, functools.partial(_four, checkpoint, name, word))
    for name in names_with(checkpoint, "SCB"):
        tensors = tuple(key(name, part) for part in BYTES)
        yield Layer(name, "bitsandbytes", tensors, functools.partial(_eight, checkpoint, name))


def _eight(checkpoint: Checkpoint, name: str) -> Stored:
    source, where = key(name, "weight"), key(name, "SCB")
    weight, form = required(checkpoint, name, "SCB", "weight"), optional(checkpoint, name, "weight_format")
    if weight.ndim != 2 or not weight.size:
        raise BadModel(f"'{source}' is of shape {list(weight.shape)}, not a matrix")
    of_type(source, weight, np.int8), of_shape(where, checkpoint[where], len(weight))
    if form is not None and (form.size != 1 or bool(form.reshape(-1)[0] != 0)):
        raise BadModel(f"'{source}' is laid out for a GPU; save it by rows, as bitsandbytes from 0.38 on does")
    return integers(
        source,
        8,
        weight.shape[1],
        lambda: np.ascontiguousarray(checkpoint[source]).view(np.uint8) ^ np.uint8(128),
        lambda: real(where, checkpoint[where]).astype(np.float32)[:, None] / np.float32(127),
        None,
        weight.shape,
        bias=bias_of(checkpoint, name),
    )


def _four(checkpoint: Checkpoint, name: str, word: str) -> Stored:
    source, state = key(name, "weight"), key(name, STATE + word)
    said = _state(state, checkpoint[state])
    n, k, block = said["shape"][0], said["shape"][1], said["blocksize"]
    packed = of_type(source, required(checkpoint, name, STATE + word, "weight"), np.uint8)
    absmax = required(checkpoint, name, "weight", "weight.absmax")
    levels = real(key(name, "weight.quant_map"), required(checkpoint, name, "weight", "weight.quant_map"))
    of_shape(key(name, "weight.quant_map"), levels, 16)
    blocks = -(-n * k // block)
    if packed.size != -(-n * k // 2) or absmax.size != blocks:
        raise BadModel(f"'{source}' has {packed.size} bytes and {absmax.size} scales, not those of {n} × {k} weights")
    flat = formats.get(word)
    assert flat.levels is not None
    if not np.allclose(levels, flat.levels, atol=1e-6):
        raise BadModel(f"'{key(name, 'weight.quant_map')}' holds other numbers than those of {word}")
    nested = _nested(checkpoint, name, said, absmax) if absmax.dtype == np.uint8 else None
    if nested is None:
        require_alone(checkpoint, name, "weight.absmax", "weight.nested_absmax", "weight.nested_quant_map")
    if said.get("quant_type", word) != word:
        raise BadModel(f"'{state}' says that it describes {said['quant_type']!s:.40}")
    by_rows = k % block == 0 or block >= k == n * k
    format, granularity = flat, Granularity(1, block)
    if nested is not None and by_rows:
        format = formats.get("nf4_dq_bnb") if word == "nf4" else flat
        if format is not flat and nested.block != format.nested_block:
            format = formats.get(f"nf4_dq_bnb{nested.block}")

    def steps() -> NDArray[np.float32]:
        if nested is not None:
            return nested.dequantize()
        return real(key(name, "weight.absmax"), checkpoint[key(name, "weight.absmax")]).astype(np.float32).reshape(-1)

    def rows() -> QuantizedTensor:
        made = layouts.from_matmul_bnb4(flat, checkpoint[source].reshape(-1), steps(), n * k, block)
        kept = nested if format is not flat else None
        return QuantizedTensor(format, granularity, made.codes.reshape(n, k), steps().reshape(n, -1), None, kept)

    def floats() -> NDArray[np.float32]:
        made = layouts.from_matmul_bnb4(flat, checkpoint[source].reshape(-1), steps(), n * k, block)
        return made.dequantize().reshape(n, k)

    if not np.isfinite(steps()).all():
        raise BadModel(f"'{key(name, 'weight.absmax')}' holds numbers that are not finite")
    bias = bias_of(checkpoint, name)
    if by_rows:
        return Stored(source, (n, k), format, granularity, rows, False, bias)
    return Stored(source, (n, k), None, Granularity(), floats, False, bias)  # no format has blocks over ends of rows


def _state(where: str, raw: NDArray) -> dict[str, Any]:
    """What the description says.

    Raises:
        BadModel: it is none.
    """
    try:
        if raw.dtype != np.uint8 or raw.size > LONGEST:
            raise ValueError
        said = limits.parse_json(raw.tobytes().decode("utf-8"), strict=True)
        shape, block = said["shape"], said["blocksize"]
        numbers = [*shape, block, said.get("nested_blocksize", 256)]
        if len(shape) != 2 or not all(isinstance(x, int) and 0 < x < 1 << 40 for x in numbers):
            raise ValueError
        return dict(said)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadModel(f"'{where}' does not describe a matrix of 4-bit weights") from None


def _nested(checkpoint: Checkpoint, name: str, said: dict[str, Any], absmax: NDArray) -> NestedScales:
    where, levels = key(name, "weight.nested_absmax"), key(name, "weight.nested_quant_map")
    factors = real(where, required(checkpoint, name, "weight", "weight.nested_absmax")).astype(np.float32).reshape(-1)
    table = real(levels, required(checkpoint, name, "weight", "weight.nested_quant_map"))
    block, offset = said.get("nested_blocksize", 256), said.get("nested_offset")
    if table.shape != (256,) or not np.allclose(table, dynamic_map(), atol=1e-6):
        raise BadModel(f"'{levels}' is not the map of numbers that bitsandbytes quantizes scales by")
    if not isinstance(offset, (int, float)) or isinstance(offset, bool) or not abs(offset) <= 1e30:
        raise BadModel(f"'{key(name, STATE)}…' says no 'nested_offset'")
    try:
        return NestedScales(np.array(absmax).reshape(-1), factors, np.float32(offset), block)
    except ValueError as error:
        raise BadModel(f"'{where}': {error}") from None

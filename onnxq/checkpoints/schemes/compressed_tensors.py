"""compressed-tensors (vLLM, llm-compressor), and what others store in the same parts.

    NAME.weight_packed int32 [out, words], NAME.weight_scale [out, groups], NAME.weight_shape     pack-quantized
        NAME.weight_zero_point int32, packed along the outputs; NAME.weight_g_idx [in]; codes are
        those of int4 and the like + 2^(bits − 1)
    NAME.weight int8, NAME.weight_scale, NAME.weight_zero_point int8                              int-quantized
    NAME.weight float8, NAME.weight_scale of the tensor, its channels, groups, or squares         float-quantized
    NAME.weight_packed uint8 [out, in / 2], NAME.weight_scale float8, NAME.weight_global_scale    nvfp4-pack-quantized
        (a divisor; ModelOpt: NAME.weight, NAME.weight_scale_2, a factor)
    NAME.weight_packed uint8, NAME.weight_scale uint8, powers of two                              mxfp4-pack-quantized
    NAME.weight float8, NAME.weight_scale uint8                                                   mxfp8-quantized
    NAME.weight float8, NAME.weight_scale_inv (a factor all the same) of squares of 128           fine-grained fp8

Source: the compressors of the package compressed-tensors 0.20; transformers' fp8 quantizer for the last.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.schemes import _scaled
from onnxq.checkpoints.schemes._order import column_order
from onnxq.checkpoints.schemes._words import spaced, stream
from onnxq.checkpoints.stored import (
    Layer,
    Stored,
    bias_of,
    group_of,
    integers,
    key,
    names_with,
    of_shape,
    of_type,
    optional,
    require_alone,
    required,
)
from onnxq.errors import BadModel
from onnxq.formats import E8M0, Granularity, QuantizedTensor
from onnxq.formats.kinds.super_blocks import StoredScales

PACKED, WEIGHT, SCALE, INVERSE = "weight_packed", "weight", "weight_scale", "weight_scale_inv"
GLOBAL, FACTOR = "weight_global_scale", "weight_scale_2"
ZERO, INDEX = "weight_zero_point", "weight_g_idx"
PARTS = (PACKED, WEIGHT, SCALE, INVERSE, GLOBAL, FACTOR, ZERO, "weight_shape", INDEX, "bias")
#: Orders of columns that are in the file, and not those of the weight.
BY_GROUP = ("group", "dynamic")
#: Of activations, which are not ours.
OTHERS = ("input_scale", "input_zero_point", "input_global_scale")


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those with weight_packed, or with a scale beside their weight."""
    names = [*names_with(checkpoint, PACKED), *names_with(checkpoint, SCALE), *names_with(checkpoint, INVERSE)]
    for name in dict.fromkeys(names):
        tensors = tuple(key(name, part) for part in (*PARTS, *OTHERS))
        yield Layer(name, "compressed-tensors", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    packed, weight = checkpoint.get(key(name, PACKED)), checkpoint.get(key(name, WEIGHT))
    main, found = (WEIGHT, weight) if packed is None else (PACKED, packed)
    if found is None:
        raise BadModel(f"'{key(name, SCALE)}' has no {key(name, WEIGHT)} or {key(name, PACKED)}")
    source, scale = key(name, main), SCALE if key(name, INVERSE) not in checkpoint else INVERSE
    scales = required(checkpoint, name, main, scale)
    if found.ndim != 2 or not found.size:
        raise BadModel(f"'{source}' is of shape {list(found.shape)}, not a matrix")
    bias, kind, rows = bias_of(checkpoint, name), found.dtype, len(scales) if scales.ndim == 2 else 1
    if kind == np.uint8 or (kind == np.int32 and main == PACKED):
        required(checkpoint, name, main, SCALE)  # the others know no inverse
        require_alone(checkpoint, name, main, INVERSE)
    if kind == np.uint8:
        _require_nothing(checkpoint, name, main, ZERO, INDEX)
        return _fp4(checkpoint, name, source, bias)
    require_alone(checkpoint, name, main, GLOBAL, FACTOR)
    if kind == np.int32 and main == PACKED:
        return _packed(checkpoint, name, source, bias)
    if scale == INVERSE:
        require_alone(checkpoint, name, main, SCALE)
    _require_nothing(checkpoint, name, main, INDEX)
    if kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        _require_nothing(checkpoint, name, main, ZERO)
        block = (_length(checkpoint, 0, len(found), rows), _group(checkpoint, found.shape[1], scales))
        return _scaled.float8(
            source, lambda: checkpoint[source], lambda: checkpoint[key(name, scale)], block, bias=bias
        )
    if kind == np.int8:
        zeros = None if optional(checkpoint, name, ZERO) is None else lambda: checkpoint[key(name, ZERO)]
        group = _group(checkpoint, found.shape[1], scales)
        return _scaled.bytes_(
            source, lambda: checkpoint[source], lambda: checkpoint[key(name, scale)], zeros, group=group, bias=bias
        )
    raise BadModel(f"'{source}' is of type {kind} beside scales of {scales.dtype}, no layout that onnxq reads")


def _require_nothing(checkpoint: Checkpoint, name: str, main: str, *parts: str) -> None:
    """Of tensors that such codes have no use for, refuse those that say something: zero points other than 0, an order.

    Raises:
        BadModel: one does.
    """
    for part in parts:
        found = optional(checkpoint, name, part)
        if found is not None and (found.astype(np.float32) != (-1 if part == INDEX else 0)).any():
            require_alone(checkpoint, name, main, part)


def _packed(checkpoint: Checkpoint, name: str, source: str, bias: tuple[str, NDArray] | None) -> Stored:
    where, zero = key(name, "weight_shape"), key(name, ZERO)
    said, columns, n = required(checkpoint, name, PACKED, "weight_shape"), checkpoint[source].shape[1], 0
    if said.shape == (2,) and said.dtype.kind in "iu":
        n, k = (int(size) for size in said)
    if n != len(checkpoint[source]) or not 0 < k <= columns * 32:
        raise BadModel(f"'{where}' is not the shape of '{source}', [{len(checkpoint[source])}, in]")
    bits, is_dense = _bits(checkpoint, source, k, columns)
    scales = _scaled.of_rows(key(name, SCALE), checkpoint[key(name, SCALE)], n)
    groups, index = scales.shape[1], optional(checkpoint, name, INDEX)
    group = group_of(source, k, groups, _group(checkpoint, k, scales))
    order = None
    if (
        index is None
        and groups > 1
        and any(str(weights.get("actorder")).lower() in BY_GROUP for weights in _said(checkpoint))
    ):
        raise BadModel(f"'{source}' has no {key(name, INDEX)}, the order that the configuration speaks of (actorder)")
    if index is not None and not (index < 0).all():
        order = column_order(key(name, INDEX), index, k, groups, group)
    unpack = stream if is_dense else spaced

    def codes() -> NDArray[np.uint8]:
        found = unpack(checkpoint[source], bits, k)
        return found if order is None else np.ascontiguousarray(found[:, order])

    def points() -> NDArray:
        return np.ascontiguousarray(unpack(np.ascontiguousarray(checkpoint[zero].T), bits, n).T)

    if optional(checkpoint, name, ZERO) is not None:
        rows = -(-n * bits // 32) if is_dense else -(-n // (32 // bits))
        of_shape(zero, of_type(zero, checkpoint[zero], np.int32), rows, groups)
    return integers(
        source,
        bits,
        group,
        codes,
        lambda: _scaled.of_rows(source, checkpoint[key(name, SCALE)], n),
        points if zero in checkpoint else None,
        (n, k),
        bias=bias,
        order=order,
    )


def _bits(checkpoint: Checkpoint, source: str, k: int, columns: int) -> tuple[int, bool]:
    """(bits of a code, whether they go over the ends of words), by the words of a row and the configuration."""
    fits = [(bits, True) for bits in range(1, 9) if -(-k * bits // 32) == columns]
    fits += [(bits, False) for bits in (3, 5, 6, 7) if -(-k // (32 // bits)) == columns]
    said = [weights.get("num_bits") for weights in _said(checkpoint)]
    known = [each for each in fits if each[0] in said] or fits
    if len({bits for bits, _ in known}) == 1:
        return known[0]
    raise BadModel(f"'{source}' has {columns} words a row for {k} inputs: of how many bits a code is cannot be told")


def _said(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What the configuration says of weights, of one kind of layers after the other."""
    groups = checkpoint.config.get("config_groups")
    each = groups.values() if isinstance(groups, dict) else ()
    found = [group.get("weights") for group in each if isinstance(group, dict)]
    return [weights for weights in found if isinstance(weights, dict)]


def _group(checkpoint: Checkpoint, k: int, scales: NDArray) -> int | None:
    """Inputs that share a scale, by the configuration."""
    return _length(checkpoint, 1, k, scales.shape[1]) if scales.ndim == 2 else None


def _length(checkpoint: Checkpoint, axis: int, size: int, parts: int) -> int | None:
    """The side of a block that the configuration says; of several, the one that makes so many parts of `size`."""
    blocks = [checkpoint.config.get("weight_block_size")]
    for weights in _said(checkpoint):
        blocks += [weights.get("block_structure"), [1, weights.get("group_size")]]
    sides = [block[axis] for block in blocks if isinstance(block, list) and len(block) == 2]
    said = {side for side in sides if isinstance(side, int) and side > 0}
    fits = said if len(said) == 1 else {side for side in said if -(-size // side) == parts}
    return next(iter(fits)) if len(fits) == 1 else None


def _fp4(checkpoint: Checkpoint, name: str, source: str, bias: tuple[str, NDArray] | None) -> Stored:
    (n, half), where = checkpoint[source].shape, key(name, SCALE)
    k, kind = 2 * half, checkpoint[where].dtype
    word, block = ("mxfp4", 32) if kind == np.uint8 else ("nvfp4", 16)
    format, granularity = formats.get(word), Granularity(1, block)
    of_shape(where, of_type(where, checkpoint[where], np.uint8, ml_dtypes.float8_e4m3fn), n, -(-k // block))
    limit = 255 if word == "mxfp4" else 127
    if (checkpoint[where].view(np.uint8) == limit).any():
        raise BadModel(f"'{where}' holds numbers that are not finite")
    if word == "mxfp4":
        require_alone(checkpoint, name, source.rpartition(".")[2], GLOBAL, FACTOR)
        return Stored(
            source,
            (n, k),
            format,
            granularity,
            lambda: QuantizedTensor(
                format, granularity, stream(checkpoint[source], 4, k), np.array(checkpoint[where]).view(E8M0)
            ),
            False,
            bias,
        )
    factor = _factor(checkpoint, name)

    def read() -> QuantizedTensor:
        short = QuantizedTensor(formats.get("float8_e4m3"), Granularity(), np.array(checkpoint[where]), factor)
        stored = StoredScales(short)
        return QuantizedTensor(format, granularity, stream(checkpoint[source], 4, k), stored.values[0], None, stored)

    return Stored(source, (n, k), format, granularity, read, False, bias)


def _factor(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    """Of all scales of a weight."""
    part = GLOBAL if key(name, GLOBAL) in checkpoint else FACTOR
    where, found = key(name, part), optional(checkpoint, name, part)
    if part == GLOBAL:
        require_alone(checkpoint, name, SCALE, FACTOR)
    if found is None:
        return np.array(1, np.float32)
    if found.size == 1 and found.dtype.kind == "f":
        with np.errstate(all="ignore"):
            number = np.asarray(found, np.float64).reshape(())
            factor = np.asarray(1 / number if where.endswith(GLOBAL) else number).astype(np.float32)
        if 0 < factor < np.inf:
            return factor
    raise BadModel(f"'{where}' is no single positive number, or none that float32 holds")

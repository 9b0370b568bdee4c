"""torchao: the metadata of a file says of each tensor NAME.weight what it was, and its parts are NAME._weight_qdata,
NAME._weight_scale and NAME._weight_zero_point.

Source: torchao 0.18's `flatten_tensor_state_dict`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.schemes import _scaled
from onnxq.checkpoints.stored import Layer, Stored, bias_of, key, names_with, optional, require_alone, required
from onnxq.errors import BadModel
from onnxq.files import limits

QDATA, SCALE, ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
PARTS = (QDATA, SCALE, ZERO, "_weight_act_pre_scale", "_weight_per_tensor_scale", "bias")
INTEGERS, FLOATS = ("Int8Tensor", "IntxUnpackedToInt8Tensor"), ("Float8Tensor",)


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those with qdata."""
    for name in names_with(checkpoint, QDATA):
        tensors = tuple(key(name, part) for part in PARTS)
        yield Layer(name, "torchao", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    source, where, zero = (key(name, part) for part in (QDATA, SCALE, ZERO))
    codes, (kind, bits, block) = checkpoint[source], _kind(checkpoint, name)
    required(checkpoint, name, QDATA, SCALE)
    if kind not in (*INTEGERS, *FLOATS):
        raise BadModel(f"'{source}' is of torchao's {kind}; {', '.join((*INTEGERS, *FLOATS))} are read")
    if codes.ndim != 2 or not codes.size:
        raise BadModel(f"'{source}' is of shape {list(codes.shape)}, not a matrix")
    if key(name, "_weight_act_pre_scale") in checkpoint:
        raise BadModel(f"'{source}' wants its inputs scaled (act_pre_scale), which onnxq does not read")
    require_alone(checkpoint, name, QDATA, "_weight_per_tensor_scale")
    bias = bias_of(checkpoint, name)
    if kind in FLOATS and codes.dtype.kind == "V":
        require_alone(checkpoint, name, QDATA, ZERO)
        return _scaled.float8(source, lambda: checkpoint[source], lambda: checkpoint[where], block, bias=bias)
    if codes.dtype != np.int8:
        raise BadModel(f"'{source}' is of type {codes.dtype}, which is none of torchao's {kind}")
    zeros = None if optional(checkpoint, name, ZERO) is None else lambda: checkpoint[zero]
    return _scaled.bytes_(
        source, lambda: checkpoint[source], lambda: checkpoint[where], zeros, bits, block[1], bias=bias
    )


def _kind(checkpoint: Checkpoint, name: str) -> tuple[Any, int, tuple[int | None, int | None]]:
    """(the type that the file says its weight is of, bits of a code, outputs and inputs that share a scale)."""
    try:
        said = limits.parse_json(checkpoint.metadata[key(name, "weight")])
        target = said["_data"].get("target_dtype") or {}
        word = str(target.get("_data", ""))
        bits = int(word[3:]) if word in ("int2", "int3", "int4", "int5", "int6", "int7") else 8
        block = said["_data"].get("block_size")
        is_told = isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) for side in block)
        return said["_type"], bits, (block[0], block[1]) if is_told else (None, None)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise BadModel(f"the file does not say of what type '{key(name, 'weight')}' is in torchao") from None

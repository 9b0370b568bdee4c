"""GPTQ: NAME.qweight int32 [in · bits / 32, out], qzeros int32 [groups, out · bits / 32], scales [groups, out].

Codes lie in one stream of bits down each column (3 bits go over the ends of words), zero points along each row. Files
of version 1 hold zero points minus one, modulo 2^bits: its makers store 0 as 2^bits − 1. NAME.g_idx [in] says which
group an input belongs to; where those do not follow each other (act-order) columns are sorted by it.

Source: AutoGPTQ's `QuantLinear` (version 1), GPTQModel's `convert_gptq_v1_to_v2_format` (version 2: `checkpoint_format`
is "gptq_v2").
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.schemes._order import column_order
from onnxq.checkpoints.schemes._words import stream
from onnxq.checkpoints.stored import (
    Layer,
    Stored,
    bias_of,
    group_of,
    integers,
    key,
    names_with,
    of_type,
    optional,
    require_method,
    required,
)
from onnxq.errors import BadModel

MAIN, PARTS = "qweight", ("qweight", "qzeros", "scales", "g_idx", "bias")
BITS = (2, 3, 4, 5, 6, 7, 8)
#: Others are laid out for particular kernels (marlin, bitblas), and made of these when a model is loaded.
FORMATS = ("gptq", "gptq_v2")
#: Where a configuration says that layers differ.
_BY_LAYER = ("dynamic", "extra_config", "modules_in_block_to_quantize")


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those with qweight and qzeros whose codes are packed along the inputs."""
    if str(checkpoint.config.get("quant_method", "")).lower() == "awq":
        return
    for name in names_with(checkpoint, MAIN):
        scales = checkpoint.get(key(name, "scales"))
        weight = checkpoint[key(name, MAIN)]
        if (
            isinstance(scales, np.ndarray)
            and scales.ndim == weight.ndim == 2
            and weight.shape[1] * 8 == scales.shape[1]
        ):
            continue  # packed along the outputs: AWQ
        tensors = tuple(key(name, part) for part in PARTS)
        yield Layer(name, "gptq", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    source = key(name, MAIN)
    said = str(checkpoint.config.get("checkpoint_format") or "gptq").lower()
    if said not in FORMATS:
        raise BadModel(f"'{source}' is laid out as {said:.40}; save the checkpoint in the format gptq or gptq_v2")
    require_method(checkpoint.config, source, "GPTQ")
    packed = of_type(source, checkpoint[source], np.int32, np.uint32)
    scales = required(checkpoint, name, MAIN, "scales")
    zeros = of_type(key(name, "qzeros"), required(checkpoint, name, MAIN, "qzeros"), np.int32, np.uint32)
    if not packed.ndim == scales.ndim == zeros.ndim == 2 or not packed.size or not scales.size:
        raise BadModel(f"'{source}' and the scales and qzeros beside it are not matrices of numbers")
    (groups, n), rows = scales.shape, len(packed)
    bits = _bits(checkpoint, name, n, zeros.shape[1])
    k = rows * 32 // bits
    if packed.shape[1] != n or zeros.shape != (groups, -(-n * bits // 32)) or rows * 32 % bits:
        raise BadModel(
            f"'{source}' {list(packed.shape)}, qzeros {list(zeros.shape)} and scales {list(scales.shape)} do not fit "
            f"each other for codes of {bits} bits"
        )
    order, group = _order(checkpoint, name, k, groups)
    less = 0 if said == "gptq_v2" else 1

    def codes() -> NDArray[np.uint8]:
        found = stream(np.ascontiguousarray(checkpoint[source].T), bits, k)
        return found if order is None else np.ascontiguousarray(found[:, order])

    def points() -> NDArray:
        stored = stream(checkpoint[key(name, "qzeros")], bits, n).T.astype(np.int16)
        return np.ascontiguousarray((stored + less) % (1 << bits))

    return integers(
        source,
        bits,
        group,
        codes,
        lambda: np.ascontiguousarray(checkpoint[key(name, "scales")].T),
        points,
        (n, k),
        bias=bias_of(checkpoint, name),
        order=order,
    )


def _bits(checkpoint: Checkpoint, name: str, n: int, columns: int) -> int:
    """Bits of a code: what zero points take; where several take as much, what the configuration says."""
    found = [bits for bits in BITS if -(-n * bits // 32) == columns]
    said = checkpoint.config.get("bits", checkpoint.config.get("w_bit"))
    if said in found:
        return int(said)
    if len(found) == 1 and type(said) is int and said != found[0] and not _is_by_layer(checkpoint):
        raise BadModel(f"'{key(name, 'qzeros')}' is of codes of {found[0]} bits, but the configuration says {said}")
    if len(found) == 1:
        return found[0]
    raise BadModel(
        f"'{key(name, 'qzeros')}' has {columns} words for {n} outputs: of how many bits a code is cannot be told"
    )


def _is_by_layer(checkpoint: Checkpoint) -> bool:
    return any(checkpoint.config.get(word) for word in _BY_LAYER)


def _order(checkpoint: Checkpoint, name: str, k: int, groups: int) -> tuple[NDArray[np.int64] | None, int]:
    """(which input each column belongs to, inputs of a group); no order where they lie as they are."""
    where, said = key(name, "g_idx"), checkpoint.config.get("group_size")
    index = optional(checkpoint, name, "g_idx")
    said = said if type(said) is int and said > 0 else None
    size = said if said and -(-k // said) == groups else None
    if said and not size and not _is_by_layer(checkpoint):
        raise BadModel(f"'{key(name, MAIN)}': {k} inputs in {groups} groups are none of {said}, the group_size told")
    if (index is None or not index.size) and checkpoint.config.get("desc_act") is True and groups > 1:
        raise BadModel(f"'{key(name, MAIN)}' has no {where}, the order that the configuration speaks of (desc_act)")
    if index is None or not index.size:
        return None, group_of(key(name, MAIN), k, groups, size)
    if index.shape != (k,):
        raise BadModel(f"'{where}' is not one group for each of {k} inputs")
    if size is None:
        size = int(np.unique(index, return_counts=True)[1].max())  # the first may be of the last group, a short one
    group = group_of(key(name, MAIN), k, groups, size)
    return column_order(where, index, k, groups, group), group

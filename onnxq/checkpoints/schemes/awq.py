"""AWQ: NAME.qweight int32 [in, out / 8], NAME.qzeros int32 [groups, out / 8], NAME.scales [groups, out]; 4 bits.

Eight outputs share a word, whose nibbles from the lowest on are outputs 0, 2, 4, 6, 1, 3, 5, 7.

Source: AutoAWQ's `WQLinear_GEMM`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.schemes._words import stream
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
    require_alone,
    require_method,
    required,
)
from onnxq.errors import BadModel

MAIN, PARTS = "qweight", ("qweight", "qzeros", "scales", "bias")
#: Which output of eight each nibble of a word is.
NIBBLES = np.array([0, 2, 4, 6, 1, 3, 5, 7])


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those with qweight and qzeros that are not GPTQ's."""
    for name in names_with(checkpoint, MAIN):
        tensors = tuple(key(name, part) for part in PARTS)
        yield Layer(name, "awq", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    source, where = key(name, MAIN), key(name, "qzeros")
    version = str(checkpoint.config.get("version", "gemm")).lower()
    if version != "gemm":
        raise BadModel(f"'{source}' is of AWQ's version {version}; only gemm, its format of files, is read")
    require_method(checkpoint.config, source, "AWQ", "gptq")
    require_alone(checkpoint, name, MAIN, "g_idx")
    bits = checkpoint.config.get("bits", checkpoint.config.get("w_bit", 4))
    if bits != 4:
        raise BadModel(f"'{source}' is of AWQ, which has 4 bits, but the configuration says {bits!s:.40}")
    packed = of_type(source, checkpoint[source], np.int32, np.uint32)
    scales = required(checkpoint, name, MAIN, "scales")
    zeros = checkpoint.get(where)
    if packed.ndim != 2 or scales.ndim != 2 or not packed.size or not scales.size:
        raise BadModel(f"'{source}' and the scales beside it are not matrices of numbers")
    k, n = packed.shape[0], packed.shape[1] * 8
    groups = len(scales)
    of_shape(key(name, "scales"), scales, groups, n)
    if zeros is not None:
        of_shape(where, of_type(where, zeros, np.int32, np.uint32), groups, n // 8)
    said = checkpoint.config.get("group_size", checkpoint.config.get("q_group_size"))
    group = group_of(source, k, groups, said if isinstance(said, int) else k // groups)  # its groups are whole

    def outputs_first(tensor: str) -> NDArray[np.uint8]:
        codes = stream(checkpoint[tensor], 4, n)
        plain = np.empty_like(codes).reshape(len(codes), n // 8, 8)
        plain[:, :, NIBBLES] = codes.reshape(len(codes), n // 8, 8)
        return np.ascontiguousarray(plain.reshape(len(codes), n).T)

    return integers(
        source,
        4,
        group,
        lambda: outputs_first(source),
        lambda: np.ascontiguousarray(checkpoint[key(name, "scales")].T),
        None if zeros is None else lambda: outputs_first(where),
        (n, k),
        bias=bias_of(checkpoint, name),
    )

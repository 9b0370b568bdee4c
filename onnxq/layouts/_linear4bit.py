"""Linear4bit checkpoints: `weight_4bit` uint8 [out, in / 2] and `scales_4bit` float16 [out, groups].

Symmetric, y = x · wᵀ: w = scale · (code − 8), codes 0…15, the even input in the low nibble.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.layouts._bits import from_low_first, low_first
from onnxq.layouts._rows import Bytes, signed, unsigned


def linear4bit(q: QuantizedTensor) -> tuple[Bytes, NDArray[np.float16]]:
    """(weight_4bit, scales_4bit) of a symmetric 4-bit weight [out, in] in blocks along its last axis.

    Scales must be float16 already, as the codes were chosen for them, or be the same in float16.

    Raises:
        BadModel: another format or shape, or scales that float16 does not hold.
    """
    granularity = q.granularity
    symmetric = q.format.bits == 4 and q.codes.dtype == np.int8
    if not symmetric or len(q.shape) != 2 or granularity.axis != 1 or granularity.block is None or q.shape[1] % 2:
        raise BadModel(
            f"a Linear4bit checkpoint holds symmetric 4-bit matrices [out, in] of even width in groups of inputs, "
            f"not {q.format.name} of shape {list(q.shape)}"
        )
    assert q.scales is not None
    with np.errstate(over="ignore"):
        half = q.scales.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), q.scales.astype(np.float32)):
        raise BadModel("the scales of a Linear4bit checkpoint are float16; encode the weight with float16 scales")
    return low_first(unsigned(q.codes, 4), 4), half


def from_linear4bit(weight_4bit: Bytes, scales_4bit: NDArray, name: str = "w") -> QuantizedTensor:
    """The int4 weight [out, in] of two tensors `weight_4bit` and `scales_4bit` of a checkpoint, called `name`.

    Raises:
        BadModel: their shapes do not fit each other, or are of other types.
    """
    if weight_4bit.ndim != 2 or scales_4bit.ndim != 2 or len(weight_4bit) != len(scales_4bit):
        raise BadModel(
            f"weight '{name}': weight_4bit {list(weight_4bit.shape)} and scales_4bit {list(scales_4bit.shape)} "
            "are not [out, in / 2] and [out, groups]"
        )
    if weight_4bit.dtype != np.uint8 or scales_4bit.dtype.kind != "f":
        raise BadModel(
            f"weight '{name}': weight_4bit is {weight_4bit.dtype}, scales_4bit {scales_4bit.dtype}; "
            "they should be uint8 and float16"
        )
    k, groups = 2 * weight_4bit.shape[1], scales_4bit.shape[1]
    if groups == 0 or k % groups:
        raise BadModel(f"weight '{name}': {k} inputs cannot be cut into {groups} equal groups")
    codes = signed(from_low_first(weight_4bit, 4, k), 4)
    return QuantizedTensor(formats.get("int4"), Granularity(1, k // groups), codes, scales_4bit)

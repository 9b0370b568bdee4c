"""Linear4bit checkpoints: `weight_4bit` uint8 [out, in / 2] and `scales_4bit` float16 [out, groups].

Symmetric, y = x · wᵀ: w = scale · (code − 8), codes 0…15, the even input in the low nibble. All groups but the last are
of one size: 130 inputs in groups of 64 are 64 + 64 + 2.
"""

from __future__ import annotations

import ml_dtypes
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


def from_linear4bit(
    weight_4bit: Bytes, scales_4bit: NDArray, name: str = "w", group: int | None = None
) -> QuantizedTensor:
    """The int4 weight [out, in] of two tensors `weight_4bit` and `scales_4bit` of a checkpoint, called `name`.

    Args:
        scales_4bit: [out, ceil(in / group)], of any floating-point type.
        group: inputs that share a scale; the last group of a row may be shorter. None: as `group_size` finds it.

    Raises:
        BadModel: their shapes do not fit each other, they are of other types, or the group is not to be told.
    """
    block, scales = linear4bit_groups(weight_4bit, scales_4bit, name, group)
    codes = signed(from_low_first(weight_4bit, 4, 2 * weight_4bit.shape[1]), 4)
    return QuantizedTensor(formats.get("int4"), Granularity(1, block), codes, scales)


def linear4bit_groups(
    weight_4bit: Bytes, scales_4bit: NDArray, name: str = "w", group: int | None = None
) -> tuple[int, NDArray]:
    """(inputs that share a scale, the scales as float16 or float32) of two such tensors.

    Args:
        weight_4bit, scales_4bit, name, group: as `from_linear4bit` takes them.

    Raises:
        BadModel: as `from_linear4bit`.
    """
    if weight_4bit.ndim != 2 or scales_4bit.ndim != 2 or len(weight_4bit) != len(scales_4bit):
        raise BadModel(
            f"weight '{name}': weight_4bit {list(weight_4bit.shape)} and scales_4bit {list(scales_4bit.shape)} "
            "are not [out, in / 2] and [out, groups]"
        )
    is_float = scales_4bit.dtype.kind == "f" or scales_4bit.dtype == ml_dtypes.bfloat16
    if weight_4bit.dtype != np.uint8 or not is_float:
        raise BadModel(
            f"weight '{name}': weight_4bit is {weight_4bit.dtype}, scales_4bit {scales_4bit.dtype}; "
            "they should be uint8 and float16"
        )
    k, groups = 2 * weight_4bit.shape[1], scales_4bit.shape[1]
    block = group_size(k, groups, name) if group is None else group
    if block < 1 or -(-k // block) != groups:
        raise BadModel(f"weight '{name}': {k} inputs in groups of {block} do not have {groups} scales a row")
    with np.errstate(over="ignore"):
        is_kept = scales_4bit.dtype in (np.float16, np.float32)
        return block, scales_4bit if is_kept else scales_4bit.astype(np.float32)


def group_size(k: int, groups: int, name: str = "w") -> int:
    """How many of `k` inputs share a scale, where a row has `groups` scales and nobody says it.

    It is the one power of two that gives so many, the last group being shorter if it has to, or all inputs. Where equal
    groups of another size would do as well (192 inputs with 2 scales: 128 + 64, or 96 + 96), nothing is guessed.

    Args:
        name: of the weight, for what is said about it.

    Raises:
        BadModel: it cannot be told.
    """
    if groups == 1:
        return max(1, k)
    power = next((1 << i for i in range(k.bit_length()) if -(-k // (1 << i)) == groups), None)
    equal = k // groups if groups and k % groups == 0 and k else None
    found = [size for size in dict.fromkeys((power, equal)) if size is not None]
    if len(found) == 1:
        return found[0]
    sizes = f"fit groups of {found[0]} and of {found[1]}" if found else "fit no groups of a usual size"
    raise BadModel(f"weight '{name}': {groups} scales for {k} inputs {sizes}: name the size of a group")

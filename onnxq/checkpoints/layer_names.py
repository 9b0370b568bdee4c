"""What the tensors of a packed 4-bit layer are called in a checkpoint.

NAME.weight_4bit, NAME.scales_4bit and, where there are some, NAME.bias and NAME.group_size. Checkpoints of others have
no group_size, and mostly need none (`layouts.group_size`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from numpy.typing import NDArray

from onnxq.errors import BadModel

WEIGHT, SCALES, BIAS, GROUP = ".weight_4bit", ".scales_4bit", ".bias", ".group_size"


def names_in(tensors: Mapping[str, NDArray]) -> Iterator[str]:
    """The layers of a checkpoint, as their tensors name them."""
    for key in tensors:
        if key.endswith(WEIGHT):
            yield key.removesuffix(WEIGHT)
        elif key == WEIGHT[1:]:
            yield ""


def key_of(name: str, part: str) -> str:
    """What a tensor of the layer `name` is called."""
    return f"{name}{part}" if name else part[1:]


def group_of(stored: NDArray | None, name: str) -> int | None:
    """The size of a group that a checkpoint names.

    Raises:
        BadModel: it names no such size.
    """
    if stored is None:
        return None
    if stored.size != 1 or stored.dtype.kind not in "iu" or int(stored.reshape(-1)[0]) < 1:
        raise BadModel(f"'{key_of(name, GROUP)}' is no single positive integer")
    return int(stored.reshape(-1)[0])

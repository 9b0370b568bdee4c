"""Linear4bit: NAME.weight_4bit uint8 [out, in / 2], NAME.scales_4bit [out, groups]; symmetric.

Source: `layouts.linear4bit`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from onnxq import formats, layouts
from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.layer_names import BIAS, GROUP, SCALES, WEIGHT, group_of, key_of, names_in
from onnxq.checkpoints.stored import Layer, Stored, bias_of
from onnxq.errors import BadModel
from onnxq.formats import Granularity

PARTS = (WEIGHT, SCALES, BIAS, GROUP)


def layers(checkpoint: Checkpoint, group: int | None = None) -> Iterator[Layer]:
    """All of them, and one that cannot be opened for scales without codes."""
    names = list(names_in(checkpoint))
    lone = [name.removesuffix(SCALES) for name in checkpoint if name.endswith(SCALES)]
    for name in dict.fromkeys([*names, *lone]):
        tensors = tuple(key_of(name, part) for part in PARTS)
        yield Layer(name, "linear4bit", tensors, functools.partial(_open, checkpoint, name, group))


def _open(checkpoint: Checkpoint, name: str, group: int | None) -> Stored:
    packed, scales, stored = (checkpoint.get(key_of(name, part)) for part in (WEIGHT, SCALES, GROUP))
    source = key_of(name, WEIGHT)
    if packed is None:
        raise BadModel(f"'{key_of(name, SCALES)}' has no {source}")
    if scales is None:
        raise BadModel(f"'{source}' has no {key_of(name, SCALES)}")
    size = group_of(stored, name) if group is None else group
    size, scales = layouts.linear4bit_groups(packed, scales, name, size)
    if not np.isfinite(scales.astype(np.float32)).all():
        raise BadModel(f"'{key_of(name, SCALES)}' holds numbers that are not finite")
    shape = (len(packed), 2 * packed.shape[1])

    def read() -> formats.QuantizedTensor:
        return layouts.from_linear4bit(checkpoint[source], checkpoint[key_of(name, SCALES)], name, size)

    half = scales.dtype == np.float16
    return Stored(source, shape, formats.get("int4"), Granularity(1, size), read, half, bias_of(checkpoint, name))

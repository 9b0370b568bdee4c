"""Plain floats: NAME.weight [out, in] of float32, float16, bfloat16 or float8, as frameworks save them.

Every other tensor of floats is put in where the model has a constant of that name and shape (`plain.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.checkpoint import Checkpoint, outline
from onnxq.checkpoints.stored import Layer, Stored, bias_of, key, names_with, real
from onnxq.checkpoints.tensors import UNKNOWN, readable
from onnxq.errors import BadModel
from onnxq.formats import Granularity


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Matrices of floats that are called weight."""
    if checkpoint.is_gguf:
        return
    for name in names_with(checkpoint, "weight"):
        shape, kind = found = outline(checkpoint, key(name, "weight"))
        if len(shape) == 2 and found.size and kind in f"fV{UNKNOWN}":
            tensors = (key(name, "weight"), key(name, "bias"))
            yield Layer(name, "floats", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    source = key(name, "weight")

    def read() -> NDArray:
        made = real(source, checkpoint[source])
        if not made.size:
            raise BadModel(f"'{source}' is empty")
        return made.astype(np.float32)

    n, k = readable(checkpoint[source]).shape
    return Stored(source, (n, k), None, Granularity(), read, False, bias_of(checkpoint, name), is_float=True)

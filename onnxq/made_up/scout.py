"""Opens a model for inputs whose sizes are guessed: a guess that takes too much memory must not end the process."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.files import room
from onnxq.made_up.dims import Dims
from onnxq.runtime.session import Input, Session

#: Share of the machine's memory that one run on guessed sizes may take: quantized, watched, timed and checked, a model
#: is open several times, and each session keeps what its runs took.
SHARE = 16
#: Copies of the constants: as they are, reordered, and packed for the kernels.
COPIES = 3


def scout(model: ir.Model, threads: int = 0) -> Session:
    """A session that refuses what is too large; without a bound where a model leaves no size to be guessed.

    An attention over all pixels has the square of their number of scores: 10 GB for a picture of 224 × 224.
    """
    inputs = [Input(value.name or "", np.dtype(np.float32), _shape(value)) for value in model.graph.inputs]
    if not Dims(inputs).rest:
        return Session(model, threads=threads)
    values = (value.const_value for each in model.graphs() for value in each.initializers.values())
    constants = sum(tensor.nbytes for tensor in values if tensor is not None)
    return Session(model, threads=threads, most_bytes=room.memory() // SHARE + COPIES * constants)


def _shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)

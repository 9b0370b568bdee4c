"""Opens a model for inputs whose sizes are guessed: a guess that takes too much memory must not end the process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.files import room
from onnxq.made_up.dims import Dims
from onnxq.runtime.session import Input, Session

#: Share of the machine's memory that one run on guessed sizes may take: quantized, watched, timed and checked, a model
#: is open several times, and each session keeps what its runs took.
SHARE = 16
#: Copies of the constants: as they are, reordered, and packed for the kernels.
COPIES = 3


def scout(model: ir.Model, file: Path | None = None) -> Session:
    """A session that refuses what is too large; without a bound where a model leaves no size to be guessed.

    An attention over all pixels has the square of their number of scores: 10 GB for a picture of 224 × 224.

    Args:
        file: what the model was prepared from, which alone tells what has to run: nodes whose results nobody reads are
            in it, and no mistakes of the preparation.
    """
    inputs = [Input(value.name or "", np.dtype(np.float32), _shape(value)) for value in model.graph.inputs]
    most_bytes = 0
    if Dims(inputs).rest:
        values = (value.const_value for each in model.graphs() for value in each.initializers.values())
        constants = sum(tensor.nbytes for tensor in values if tensor is not None)
        most_bytes = room.memory() // SHARE + COPIES * constants
    if file is not None:
        with contextlib.suppress(BadModel):  # there are files of which only the prepared model runs
            return Session(file, threads=0, most_bytes=most_bytes)
    return Session(model, threads=0, most_bytes=most_bytes)


def _shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)

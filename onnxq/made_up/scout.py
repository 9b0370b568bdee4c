"""Opens a model for inputs whose sizes are guessed: a guess that takes too much memory must not end the process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

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
        file: what the model was prepared from, where it has to run the same: sizes that a node of it refuses whose
            results nobody reads run where there is no such node any more.
    """
    inputs = [Input(value.name or "", np.dtype(np.float32), _shape(value)) for value in model.graph.inputs]
    if not Dims(inputs).rest:
        return Session(model, threads=0)
    values = (value.const_value for each in model.graphs() for value in each.initializers.values())
    constants = sum(tensor.nbytes for tensor in values if tensor is not None)
    most_bytes = room.memory() // SHARE + COPIES * constants
    if file is not None:
        with contextlib.suppress(BadModel):  # there are files of which only the prepared model runs
            return _Agreeing(model, Session(file, threads=0, most_bytes=most_bytes), most_bytes)
    return Session(model, threads=0, most_bytes=most_bytes)


class _Agreeing(Session):
    """One that refuses what another session refuses, too."""

    def __init__(self, model: ir.Model, other: Session, most_bytes: int) -> None:
        super().__init__(model, threads=other.threads, most_bytes=most_bytes)
        self._other = other

    def run(self, feed: Mapping[str, NDArray], outputs: Sequence[str] | None = None) -> list[NDArray]:
        found = super().run(feed, outputs)
        self._other.run(feed)
        return found


def _shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)

"""Labels: arrays that lie beside the inputs of samples and say what the right answer is."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.errors import BadData, BadRecipe
from onnxq.runtime.session import Feed
from onnxq.samples import arrays
from onnxq.samples.fit import Label, Read
from onnxq.samples.source import Data, DataSource, inputs_of


def label_of(model: ir.Model, name: str, source: DataSource | None) -> Label:
    """The labels called `name`, as one more thing that samples of `model` hold.

    Raises:
        BadRecipe: it is an input of the model, or there are no data.
        BadData: such data hold no labels.
    """
    if source is None:
        raise BadRecipe(f"--labels {name}: labels lie beside the samples: give --data")
    inputs = [i.name for i in inputs_of(model)]
    if name in inputs:
        raise BadRecipe(f"--labels {name}: '{name}' is an input of the model; name an array that is none")
    is_file = isinstance(source, (str, Path)) and Path(source).suffix.lower() != ""
    if is_file and Path(str(source)).is_file() and Path(str(source)).suffix.lower() not in arrays.SUFFIXES:
        raise BadData(f"--labels {name}: labels are arrays of an .npz file, or of dicts from Python, not of '{source}'")
    return Label(name, np.dtype(np.object_), None)


def without(data: Data, name: str) -> Data:
    """The samples without the array `name`."""

    def reads() -> Iterator[Read]:
        return (functools.partial(_without, read, name) for read in data.reads())

    return Data(data.source, reads, data.fingerprint, gaps=data.gaps)


def _without(read: Read, name: str) -> Feed:
    return {key: x for key, x in read().items() if key != name}

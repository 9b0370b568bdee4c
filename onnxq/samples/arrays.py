"""Samples from `.npz` and `.npy` files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData, first_line
from onnxq.files import array_limits, limits
from onnxq.runtime.session import Feed, Input
from onnxq.samples.fit import Cut, Read, cut
from onnxq.samples.rows_in_files import rows_of

SUFFIXES = {".npz", ".npy"}


def read_files(files: Sequence[Path], inputs: tuple[Input, ...]) -> Iterator[Read]:
    """The samples of files of arrays. How many a file holds its headers say; it is read with its first sample, a large
    one sample by sample."""
    for file in files:
        rows = _rows(file)
        outline = cut(_named(_shapes(file) if rows is None else rows, inputs, file), inputs, f"'{file}'")
        samples = functools.cache(functools.partial(_read_arrays, file, inputs))
        for i in range(len(outline)):
            yield functools.partial(_nth, samples, i) if rows is None else functools.partial(outline.__getitem__, i)


def _nth(samples: Callable[[], Sequence[Feed]], i: int) -> Feed:
    return samples()[i]


def _read_arrays(path: Path, inputs: tuple[Input, ...]) -> Cut:
    """The samples of one file of arrays."""
    return cut(_named(_load(path), inputs, path), inputs, f"'{path}'")


def _rows(path: Path) -> Any:
    """What stands for the arrays of a large file, by name or as a single one; None: it is to be read whole."""
    try:
        found = rows_of(path)
    except BadData:
        raise
    except Exception as error:  # zipfile has a dozen kinds
        raise BadData(f"'{path}' cannot be read: {first_line(error)}") from None
    return found if found is None or path.suffix.lower() == ".npz" else found[""]


def _named(loaded: NDArray | dict[str, NDArray], inputs: tuple[Input, ...], path: Path) -> dict[str, NDArray]:
    """The arrays of a file by name: a single one is the only input."""
    if isinstance(loaded, dict):
        return loaded
    if len(inputs) != 1:
        names = ", ".join(i.name for i in inputs)
        raise BadData(f"'{path}' is one array, but the model has {len(inputs)} inputs; use .npz: {names}")
    return {inputs[0].name: loaded}


def _shapes(path: Path) -> NDArray | dict[str, NDArray]:
    """Arrays as in the file, but without its numbers: they take no memory."""
    try:
        if path.suffix.lower() == ".npy":
            with limits.open_file(path, BadData) as file:
                return _without_numbers(*array_limits.header(file, path.stat().st_size))
        return {name: _without_numbers(*found) for name, found in array_limits.headers(path).items()}
    except (OSError, ValueError) as error:
        raise BadData(f"'{path}' cannot be read: {first_line(error)}") from None


def _without_numbers(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _load(path: Path) -> NDArray | dict[str, NDArray]:
    """The array, or the arrays by name, of one file whose headers are as they should be."""
    try:
        # numpy does not close a file it fails to read.
        with limits.open_file(path, BadData) as file:
            loaded = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except BadData:
        raise
    except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
        raise BadData(f"'{path}' cannot be read: {first_line(error)}") from None

"""Samples from `.npz` and `.npy` files."""

from __future__ import annotations

import functools
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.runtime import Feed, Input
from onnxq.samples.fit import Read, cut

SUFFIXES = {".npz", ".npy"}


def read_files(files: Sequence[Path], inputs: tuple[Input, ...]) -> Iterator[Read]:
    """The samples of files of arrays. How many a file holds its headers say; it is read with its first sample."""
    for file in files:
        count = sum(1 for _ in cut(_named(_shapes(file), inputs, file), inputs, str(file)))
        samples = functools.cache(functools.partial(_read_arrays, file, inputs))
        for i in range(count):
            yield functools.partial(_nth, samples, i)


def _nth(samples: Callable[[], Sequence[Feed]], i: int) -> Feed:
    return dict(samples()[i])


def _read_arrays(path: Path, inputs: tuple[Input, ...]) -> list[Feed]:
    """The samples of one file of arrays."""
    return list(cut(_named(_load(path), inputs, path), inputs, str(path)))


def _named(loaded: NDArray | dict[str, NDArray], inputs: tuple[Input, ...], path: Path) -> dict[str, NDArray]:
    """The arrays of a file by name: a single one is the only input."""
    if isinstance(loaded, dict):
        return loaded
    if len(inputs) != 1:
        names = ", ".join(i.name for i in inputs)
        raise BadData(f"{path} is one array, but the model has {len(inputs)} inputs; use .npz: {names}")
    return {inputs[0].name: loaded}


def _shapes(path: Path) -> NDArray | dict[str, NDArray]:
    """Arrays as in the file, but without its numbers: they take no memory."""
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return _shape(file)
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    arrays[name.removesuffix(".npy")] = _shape(file)
        return arrays
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return _load(path)  # which says what is wrong with it, or knows better


def _shape(file: IO[bytes]) -> NDArray:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("pickled objects")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _load(path: Path) -> NDArray | dict[str, NDArray]:
    """The array, or the arrays by name, of one file. Pickled objects, which could run code, are refused."""
    if zipfile.is_zipfile(path) is not (path.suffix.lower() == ".npz"):
        raise BadData(f"{path} cannot be read: it is damaged, or no {path.suffix} file of numpy")
    try:
        # numpy does not close a file it fails to read.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = "it holds pickled Python objects, not numbers" if "allow_pickle" in str(error) else error
        raise BadData(f"{path} cannot be read: {why}") from None
    for name, x in arrays.items():
        if not isinstance(x, np.ndarray):
            raise BadData(f"{path} cannot be read: its member '{name}' is not an array")
    return arrays

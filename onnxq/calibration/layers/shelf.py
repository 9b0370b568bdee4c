"""Values of samples that wait for the next piece of a model: in memory while there is room, else on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.memory import bytes_for


class Shelf:
    """By number of a sample, its values.

    Args:
        folder: for what does not fit into memory; made when it is needed.
        memory: bytes that may be held by this one and three others; None: 512 MiB.
    """

    def __init__(self, folder: Path, memory: int | None = None) -> None:
        self._folder = folder
        self._room = bytes_for(memory) // 4
        self._held: dict[int, dict[str, NDArray]] = {}
        self._nbytes: dict[int, int] = {}
        self._names: dict[int, dict[str, np.dtype]] = {}

    def put(self, number: int, values: Mapping[str, NDArray]) -> None:
        """In the place of what was there. Strings stay in memory."""
        self._held.pop(number, None)
        self._nbytes.pop(number, None)
        nbytes = sum(array.nbytes for array in values.values())
        self._names[number] = {name: array.dtype for name, array in values.items()}
        if sum(self._nbytes.values()) + nbytes <= self._room:
            self._held[number], self._nbytes[number] = dict(values), nbytes
            return
        self._held[number] = {name: array for name, array in values.items() if array.dtype == object}
        self._folder.mkdir(exist_ok=True)
        for i, array in enumerate(values.values()):
            if array.dtype != object:
                np.save(self._folder / f"{number}.{i}.npy", _plain(array), allow_pickle=False)

    def get(self, number: int) -> dict[str, NDArray]:
        held = self._held.get(number, {})
        return {
            name: held[name] if name in held else np.load(self._folder / f"{number}.{i}.npy").view(dtype)
            for i, (name, dtype) in enumerate(self._names[number].items())
        }


def _plain(array: NDArray) -> NDArray:
    """As a type that files of numpy know: bfloat16 and its like are none."""
    return array.view(f"u{array.itemsize}") if array.dtype.isbuiltin == 2 else array

"""Arrays in large files, of which each sample is read when it is asked for: data may be larger than memory."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.files import array_limits, limits
from onnxq.files.array_limits import Place

#: Smaller files are read whole: one reading for all samples takes less time than one for each.
LARGE = 64 << 20


class Rows:
    """An array in a file, or some of its rows, which are read when numpy makes an array of them."""

    def __init__(self, path: Path, place: Place) -> None:
        self.path, self._place = path, place
        self.shape, self.ndim = place.shape, len(place.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | tuple[int, EllipsisType]) -> Rows:
        """Rows one after another, or a single one, which has no first axis."""
        shape, dtype = self.shape[1:], self._place.dtype
        if isinstance(key, slice):
            first, end, _ = key.indices(len(self))
            inner = (max(0, end - first), *shape)
        else:
            first, inner = key[0], shape
        begin = self._place.first + first * math.prod(shape) * dtype.itemsize
        return Rows(self.path, Place(begin, inner, dtype))

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray:
        """Raises BadData where the file has become shorter."""
        numbers = np.empty(self.shape, self._place.dtype)
        with limits.open_file(self.path, BadData) as file:
            file.seek(self._place.first)
            count = file.readinto(numbers.reshape(-1).view(np.uint8).data) if numbers.size else 0
        if count < numbers.nbytes:
            raise BadData(f"'{self.path}' cannot be read: it has become shorter")
        return numbers


def rows_of(path: Path) -> dict[str, Rows] | None:
    """The arrays of a large file by name, or its only one by none; None: the file is small, or packed.

    Raises:
        BadData: it cannot be opened.
        ValueError, OSError, zipfile.BadZipFile: it is damaged.
    """
    with limits.open_file(path, BadData):
        found = path.stat()
    return None if found.st_size < LARGE else _looked_at(path.resolve(), found.st_size, found.st_mtime_ns)


@functools.lru_cache(16)
def _looked_at(path: Path, size: int, changed: int) -> dict[str, Rows] | None:
    """Once, as every pass over the samples asks, and sums of archives take reading them."""
    places = array_limits.places(path)
    return None if places is None else {name: Rows(path, place) for name, place in places.items()}

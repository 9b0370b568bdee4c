"""Samples of a bundle and what the model made of them, in one `.npz`: `in.0.1` is the second input of the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData, first_line
from onnxq.files import array_limits, limits
from onnxq.runtime.session import Feed, Input

#: Samples that are stored at most, and bytes of all that is stored of them, but for the first.
MOST, BYTES = 4, 32 << 20
#: Of the first sample.
FIRST_BYTES = 256 << 20


@dataclass(frozen=True)
class Stored:
    """Samples with their outputs, of those names that are compared.

    Attributes:
        wanted: what the model computed on the machine that made the bundle.
        floats: what the float model computes; empty where none was given.
    """

    feeds: list[Feed]
    wanted: list[list[NDArray]]
    floats: list[list[NDArray]]

    def fitting(self) -> Stored:
        """As many of the first as are small enough to be stored."""
        count, taken = 0, 0
        for parts in zip(self.feeds, self.wanted, self.floats or self.wanted, strict=True):
            arrays = [*parts[0].values(), *parts[1], *(parts[2] if self.floats else [])]
            taken += sum(np.asarray(x).nbytes for x in arrays)
            if taken > (BYTES if count else FIRST_BYTES):
                break
            count += 1
        return Stored(self.feeds[:count], self.wanted[:count], self.floats[:count])


def is_storable(x: object) -> bool:
    """Whether an output is numbers or text, and not a sequence, a map or nothing."""
    return isinstance(x, np.ndarray) and (x.dtype.kind in "biuf" or x.dtype == ml_dtypes.bfloat16)


def require_types(file: Path, names: Sequence[str], kept: Stored, found: Sequence[Sequence[NDArray]]) -> None:
    """Refuse outputs that are stored as another type than they have here, or of the float model as another kind.

    Args:
        names: of the outputs.
        found: what the model computes here of each sample.

    Raises:
        BadData: the first that is.
    """
    for row, ours in zip(kept.wanted, found, strict=True):
        for name, x, y in zip(names, row, ours, strict=True):
            if x.dtype != _plain(y).dtype:
                raise BadData(f"'{file}' holds the output '{name}' as {x.dtype}; the model gives {y.dtype}")
    if others := of_two_kinds(names, kept):
        raise BadData(f"'{file}' holds the output '{others[0]}' and the float model's as two kinds: {others[1]}")


def of_two_kinds(names: Sequence[str], kept: Stored) -> tuple[str, str] | None:
    """The first output that is of another kind in the float model, and which two, in words.

    Shapes may differ, as they do where they follow from the numbers.
    """
    for row, floats in zip(kept.wanted, kept.floats, strict=False):
        for name, x, y in zip(names, row, floats, strict=True):
            if not is_storable(y):
                return name, f"{x.dtype} and what is no array of numbers"
            if _plain(x).dtype.kind != _plain(y).dtype.kind:
                return name, f"{x.dtype} and {y.dtype}"
    return None


def of_other_shapes(names: Sequence[str], kept: Stored) -> frozenset[str]:
    """Outputs that have another shape in the float model on some sample: no distance to it can be told."""
    rows = zip(kept.wanted, kept.floats, strict=False)
    return frozenset(name for row in rows for name, x, y in zip(names, *row, strict=True) if x.shape != y.shape)


def save(file: Path, stored: Stored, inputs: Sequence[Input]) -> None:
    """Write `stored`; bfloat16 becomes float32, which holds the same numbers."""
    arrays: dict[str, NDArray] = {}
    for i, feed in enumerate(stored.feeds):
        arrays |= {f"in.{i}.{j}": _plain(feed[x.name]) for j, x in enumerate(inputs) if x.name in feed}
        arrays |= {f"out.{i}.{j}": _plain(x) for j, x in enumerate(stored.wanted[i])}
        if stored.floats:
            arrays |= {f"float.{i}.{j}": _plain(x) for j, x in enumerate(stored.floats[i])}
    with file.open("wb") as opened:
        _savez(opened, arrays)


def load(file: Path, inputs: Sequence[Input], samples: int, outputs: int, has_floats: bool) -> Stored:
    """What `save` wrote, as inputs of these types.

    Raises:
        BadData: it is damaged, or holds something else.
    """
    try:
        found = array_limits.headers(file)
        with limits.open_file(file, BadData) as opened, np.load(opened, allow_pickle=False) as arrays:
            read = {name: arrays[name] for name in found}
    except BadData:
        raise
    except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
        raise BadData(f"'{file}' cannot be read: {first_line(error)}") from None
    try:
        feeds = [
            {x.name: _fed(read, f"in.{i}.{j}", x.dtype) for j, x in enumerate(inputs) if f"in.{i}.{j}" in read}
            for i in range(samples)
        ]
        wanted = list(_rows(read, "out", samples, outputs))
        floats = list(_rows(read, "float", samples, outputs)) if has_floats else []
    except (KeyError, ValueError, TypeError) as error:
        raise BadData(f"'{file}' does not hold what the manifest says: {first_line(error)}") from None
    return Stored(feeds, wanted, floats)


def _fed(read: Mapping[str, NDArray], name: str, dtype: np.dtype) -> NDArray:
    found = _of_kind(read, name, "U" if dtype == np.object_ else "biuf")
    with np.errstate(over="ignore", invalid="ignore"):
        return found.astype(dtype)


def _rows(read: Mapping[str, NDArray], word: str, samples: int, outputs: int) -> Iterator[list[NDArray]]:
    for i in range(samples):
        yield [_of_kind(read, f"{word}.{i}.{j}", "biuf") for j in range(outputs)]


def _of_kind(read: Mapping[str, NDArray], name: str, kinds: str) -> NDArray:
    """An array of a type that `save` writes there.

    Raises:
        KeyError: there is none of that name.
        ValueError: it is of another type.
    """
    found = read[name]
    if found.dtype.kind not in kinds:
        raise ValueError(f"'{name}' is of type {found.dtype}")
    return found


def _plain(x: NDArray) -> NDArray:
    if x.dtype == ml_dtypes.bfloat16:
        return x.astype(np.float32)
    return x.astype(np.str_) if x.dtype == np.object_ else x


def _savez(file: IO[bytes], arrays: dict[str, NDArray]) -> None:
    np.savez(file, **arrays)  # type: ignore[arg-type]

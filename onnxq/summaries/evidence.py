"""Evidence: by weight, what the data say about the input that it is multiplied by. It lies in a file until it is read.

The file is an `.npz`: for the n-th input `n.gram` and `n.rows`, and `onnxq.json`, which says of which model and data
they are and what the inputs are called.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadRecipe, first_line
from onnxq.files import array_limits, limits, schemas
from onnxq.summaries.gram import Gram

INDEX = "onnxq.json"


class Index(msgspec.Struct, forbid_unknown_fields=True):
    """What a file of evidence is of.

    Attributes:
        model, data: their hashes.
        inputs: in the order of their numbers.
    """

    model: str
    data: str
    inputs: list[str] = []


@dataclass(frozen=True, eq=False)
class Layer:
    """One weight's input.

    Attributes:
        channel: the axis of the weight's outputs; all others are summed over.
        groups: of a grouped convolution; 1 for all else.
        file: where what was seen lies.
        numbers: under which it lies there, one for each place where the weight is read.
        follows: whether it is what quantized layers before leave.
        chosen: is told the word of the algorithm whose codes an output channel took.
    """

    channel: int
    groups: int
    file: Path
    numbers: tuple[int, ...]
    follows: bool = False
    chosen: Counter[str] = field(default_factory=Counter)
    _turned: dict[int, Layer] = field(default_factory=dict)

    def turned(self, channel: int) -> Layer:
        """The same of the transposed weight: one object, however often it is asked for."""
        if channel == self.channel:
            return self
        other = Layer(channel, self.groups, self.file, self.numbers, self.follows, self.chosen)
        return self._turned.setdefault(channel, other)

    def gram(self) -> Gram:
        """Of the samples that calibration may use."""
        return functools.reduce(Gram.merged, map(self._gram, self.numbers))

    def held_back(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """[rows, groups, K] of the samples that were held back: as the layer gets them, and as they are in float."""
        rows = np.concatenate([_load(self.file, f"{number}.rows") for number in self.numbers])
        if not self.follows:
            return rows, rows
        return rows, np.concatenate([_load(self.file, f"{number}.float_rows") for number in self.numbers])

    def _gram(self, number: int) -> Gram:
        sums = _load(self.file, f"{number}.gram")
        if not self.follows:
            return Gram(sums)
        return Gram(sums, int(_load(self.file, f"{number}.count")), _load(self.file, f"{number}.cross"))


#: By name of the initializer in the prepared model.
Evidence = Mapping[str, Layer]
NO_EVIDENCE: Evidence = {}


def add_input(
    file: Path, number: int, gram: Gram, held_back: Sequence[NDArray], in_float: Sequence[NDArray] = ()
) -> None:
    """Leave what was seen of an input in `file`, which is made if it is not there.

    Args:
        held_back: rows of the samples held back.
        in_float: what they are in the float model, if layers before are quantized.
    """
    none = np.zeros((0, *gram.sums.shape[:2]), np.float32)
    arrays = {"gram": gram.sums, "rows": np.concatenate(held_back) if held_back else none}
    if gram.cross is not None:
        arrays |= {"cross": gram.cross, "float_rows": np.concatenate(in_float) if in_float else none}
        arrays["count"] = np.array(gram.rows)
    with zipfile.ZipFile(file, "a", allowZip64=True) as archive:
        for name, array in ((f"{number}.{part}", array) for part, array in arrays.items()):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def add_index(file: Path, index: Index) -> None:
    """Complete `file`."""
    text = np.frombuffer(json.dumps(msgspec.to_builtins(index)).encode(), np.uint8)
    with zipfile.ZipFile(file, "a") as archive, archive.open(f"{INDEX}.npy", "w") as member:
        np.lib.format.write_array(member, text)


def read_index(file: Path, shapes: Mapping[str, tuple[int, int]], *, model: str, data: str) -> Index:
    """What `file` is of, if it can be used.

    Args:
        shapes: (groups, K) of the inputs that have to be in it.
        model, data: the hashes that it must be of.

    Raises:
        BadRecipe: it is damaged, of something else, or lacks one of them.
    """
    wrong = f"the evidence '{file}'"
    try:
        found = array_limits.headers(file)
        index = schemas.checked(limits.parse_json(_load(file, INDEX).tobytes().decode()), Index)
    except (ValueError, KeyError) as error:
        raise BadRecipe(f"{wrong} is not a file of evidence: {first_line(error)}") from None
    for what, value, wanted in (("another model", index.model, model), ("other data", index.data, data)):
        if value != wanted:
            raise BadRecipe(f"{wrong} is of {what}; delete the file or give another --evidence")
    for name, (groups, k) in shapes.items():
        number = index.inputs.index(name) if name in index.inputs else -1
        nothing = (0,), np.dtype(np.float32)
        gram, rows = (found.get(f"{number}.{part}", nothing) for part in ("gram", "rows"))
        if gram != ((groups, k, k), nothing[1]) or rows != ((*rows[0][:1], groups, k), nothing[1]):
            raise BadRecipe(f"{wrong} lacks '{name}'; delete the file or give another --evidence")
    return index


def _load(file: Path, name: str) -> NDArray:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except KeyError:
        raise
    except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
        raise BadRecipe(f"the evidence '{file}' cannot be read: {first_line(error)}") from None

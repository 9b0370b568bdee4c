"""Evidence: by weight, what the data say about the input that it is multiplied by. It lies in a file until it is read.

The file is an `.npz`: for the n-th input `n.gram` and `n.rows`, and `onnxq.json`, which says of which model and data
they are and what the inputs are called. What was seen of a part of the samples lies in files of the same kind
(`evidence_parts.py`).
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadRecipe, first_line
from onnxq.files import array_limits, limits, schemas
from onnxq.summaries.gram import Gram

INDEX = "onnxq.json"
#: Of the form of the file.
VERSION = 1
#: Rows that anybody sees: float64 counts them one by one.
MOST_ROWS = 1 << 53


class Index(msgspec.Struct, forbid_unknown_fields=True):
    """What a file of evidence is of.

    Attributes:
        model, data: their hashes.
        inputs: in the order of their numbers.
        version: of the file's form.
        shard: (number, count) if every count-th sample was seen only, from the number-th on.
        seen: how many samples were, of a part of them; 0: all that there are.
    """

    model: str
    data: str
    inputs: list[str] = []
    version: int = VERSION
    shard: tuple[int, int] | None = None
    seen: int = 0


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

    @property
    def seen(self) -> Hashable:
        """The same for layers of the same input, as long as their file stays as it is."""
        if not self.numbers or not self.file.exists():
            return self
        stat = self.file.stat()
        return self.file, stat.st_ino, stat.st_size, stat.st_mtime_ns, self.numbers, self.follows

    @property
    def count(self) -> int:
        """Rows of the samples that calibration may use; 0 where a file does not say."""
        return sum(rows_seen(self.file, number) for number in self.numbers)

    def gram(self) -> Gram:
        """Of the samples that calibration may use."""
        return functools.reduce(Gram.merged, map(self._gram, self.numbers))

    def held_back(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """[rows, groups, K] of the samples that were held back: as the layer gets them, and as they are in float."""
        rows = np.concatenate([load_array(self.file, f"{number}.rows") for number in self.numbers])
        if not self.follows:
            return rows, rows
        return rows, np.concatenate([load_array(self.file, f"{number}.float_rows") for number in self.numbers])

    def _gram(self, number: int) -> Gram:
        sums = load_array(self.file, f"{number}.gram")
        cross = load_array(self.file, f"{number}.cross") if self.follows else None
        gram = Gram(sums, rows_seen(self.file, number), cross)
        if not gram.is_possible:
            raise BadRecipe(
                f"the evidence '{self.file}' is not a file of evidence: no rows have the sums {number}.gram"
            )
        return gram


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
    arrays = {"gram": gram.sums, "rows": np.concatenate(held_back) if held_back else none, "count": np.array(gram.rows)}
    if gram.cross is not None:
        arrays |= {"cross": gram.cross, "float_rows": np.concatenate(in_float) if in_float else none}
    add_arrays(file, number, arrays)


def add_arrays(file: Path, number: int, arrays: Mapping[str, NDArray]) -> None:
    """Leave these in `file`, which is made if it is not there, under a number."""
    with zipfile.ZipFile(file, "a", allowZip64=True) as archive:
        for name, array in ((f"{number}.{part}", array) for part, array in arrays.items()):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def add_index(file: Path, index: Index) -> None:
    """Complete `file`."""
    text = np.frombuffer(json.dumps(msgspec.to_builtins(index)).encode(), np.uint8)
    with zipfile.ZipFile(file, "a") as archive, archive.open(f"{INDEX}.npy", "w") as member:
        np.lib.format.write_array(member, text)


def read_index(file: Path, shapes: Mapping[str, tuple[int, int]], *, model: str, data: str | None) -> Index:
    """What `file` is of, if it can be used.

    Args:
        shapes: (groups, K) of the inputs that have to be in it.
        model, data: the hashes that it must be of; of any data, if None.

    Raises:
        BadRecipe: it is damaged, of something else, of a part of the samples, or lacks one of the inputs.
    """
    wrong = f"the evidence '{file}'"
    index, found = open_index(file)
    for what, value, wanted in (("another model", index.model, model), ("other data", index.data, data)):
        if wanted is not None and value != wanted:
            raise BadRecipe(f"{wrong} is of {what}; delete the file or give another --evidence")
    if index.shard is not None or index.seen:
        raise BadRecipe(f"{wrong} is of a part of the data: merge all parts by 'onnxq calibrate --merge'")
    for name, (groups, k) in shapes.items():
        number = index.inputs.index(name) if name in index.inputs else -1
        nothing = (0,), np.dtype(np.float32)
        gram, rows = (found.get(f"{number}.{part}", nothing) for part in ("gram", "rows"))
        if gram != ((groups, k, k), nothing[1]) or rows != ((*rows[0][:1], groups, k), nothing[1]):
            raise BadRecipe(f"{wrong} lacks '{name}'; delete the file or give another --evidence")
    return index


def open_index(file: Path) -> tuple[Index, dict[str, tuple[tuple[int, ...], np.dtype]]]:
    """What `file` says that it is of, and the shape and type of each of its arrays.

    Raises:
        BadRecipe: it is damaged, no file of evidence, or of another version.
    """
    wrong = f"the evidence '{file}'"
    try:
        found = array_limits.headers(file)
        index = schemas.checked(limits.parse_json(load_array(file, INDEX).tobytes().decode()), Index)
    except (ValueError, KeyError) as error:
        raise BadRecipe(f"{wrong} is not a file of evidence: {first_line(error)}") from None
    if len({*index.inputs}) != len(index.inputs):
        raise BadRecipe(f"{wrong} is not a file of evidence: it names an input twice")
    if index.version != VERSION:
        raise BadRecipe(f"{wrong} is of version {index.version}, and this onnxq reads {VERSION}: gather it again")
    return index, found


def rows_seen(file: Path, number: int) -> int:
    """How many rows the sums of an input are of; 0 where a file of an earlier version does not say.

    Raises:
        BadRecipe: it cannot be read.
    """
    try:
        count = load_array(file, f"{number}.count")
    except KeyError:
        return 0
    if count.size != 1 or count.dtype.kind not in "iu" or not 0 <= count.item() <= MOST_ROWS:
        raise BadRecipe(f"the evidence '{file}' is not a file of evidence: {number}.count is no number of rows")
    return int(count.item())


def load_array(file: Path, name: str) -> NDArray:
    """One array of a file of evidence.

    Raises:
        BadRecipe: it cannot be read.
        KeyError: there is none of this name.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except KeyError:
        raise
    except Exception as error:  # zipfile and what it unpacks with have a dozen kinds
        raise BadRecipe(f"the evidence '{file}' cannot be read: {first_line(error)}") from None

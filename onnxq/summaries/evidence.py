"""Evidence: by weight, what the data say about the input that it is multiplied by. It lies on disk until it is read."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.summaries.gram import Gram


@dataclass(frozen=True, eq=False)
class Layer:
    """One weight's input.

    Attributes:
        channel: the axis of the weight's outputs; all others are summed over.
        groups: of a grouped convolution; 1 for all else.
        files: what was saved of each place where the weight is read.
        chosen: is told the word of the algorithm whose codes an output channel took.
    """

    channel: int
    groups: int
    files: tuple[Path, ...]
    chosen: Counter[str] = field(default_factory=Counter)

    def turned(self, channel: int) -> Layer:
        """The same of the transposed weight."""
        return Layer(channel, self.groups, self.files, self.chosen)

    def gram(self) -> Gram:
        """Of the samples that calibration may use."""
        return functools.reduce(Gram.merged, map(_load_gram, self.files))

    def held_back(self) -> NDArray[np.float32]:
        """[rows, groups, K] of the samples that were held back."""
        return np.concatenate([np.load(_rows_file(file)) for file in self.files])


#: By name of the initializer in the prepared model.
Evidence = Mapping[str, Layer]
NO_EVIDENCE: Evidence = {}


def save_layer_input(file: Path, gram: Gram, held_back: Sequence[NDArray]) -> None:
    """Leave what was seen at a place in `file` and one beside it."""
    np.save(file, gram.sums)
    np.save(_rows_file(file), np.concatenate(held_back) if held_back else np.zeros((0, *gram.sums.shape[:2])))


def _load_gram(file: Path) -> Gram:
    return Gram(np.load(file))


def _rows_file(file: Path) -> Path:
    return file.with_suffix(".rows.npy")

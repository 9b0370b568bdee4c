"""What a few rows that are at hand say of a layer's input, for algorithms that ask for evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from onnxq.summaries.evidence import Layer
from onnxq.summaries.gram import Gram


@dataclass(frozen=True, eq=False)
class LayerOfRows(Layer):
    """The evidence that rows in memory are; none are held back.

    Attributes:
        rows: [rows, groups, K].
    """

    rows: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 1, 1), np.float32))

    @classmethod
    def of(cls, rows: NDArray[np.float32], channel: int) -> Self:
        """Of these rows.

        Args:
            rows: [rows, groups, K].
            channel: the axis of the weight's outputs.
        """
        return cls(channel, rows.shape[1], Path(), (), rows=rows)

    @property
    def count(self) -> int:
        return len(self.rows)

    def gram(self) -> Gram:
        gram = Gram.empty(*self.rows.shape[1:])
        gram.update(self.rows)
        return gram

    def held_back(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        none = self.rows[:0]
        return none, none

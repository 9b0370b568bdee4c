"""Which codes: ways of choosing the numbers that represent a weight.

One file each; the file name is the word. Each defines `quantize(w, format, granularity, scales, zero_points)`, where
scales of None mean the format's own, and `suits(op_type, format, granularity)`, which says what it is chosen for: no
two of them claim the same weight.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor

#: What nobody claims is rounded to nearest.
PLAIN = "rtn"


class Algorithm(Protocol):
    def __call__(
        self,
        w: FloatArray,
        format: Format,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor: ...


_MODULES = {
    path.stem: importlib.import_module(f"onnxq.algorithms.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("[!_]*.py"))
}
#: The algorithms that need nothing but the weight, by the folder's file names.
DATA_FREE: Mapping[str, Algorithm] = {word: module.quantize for word, module in _MODULES.items()}


def choose(op_type: str, format: Format, granularity: Granularity) -> str:
    """The algorithm that measured best (docs/algorithms.md): the one that claims such weights."""
    return next((word for word, module in _MODULES.items() if module.suits(op_type, format, granularity)), PLAIN)

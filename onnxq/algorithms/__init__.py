"""Which codes: ways of choosing the numbers that represent a weight.

One file each; the file name is the word. Each defines `quantize(w, format, granularity, scales, zero_points)`, where
scales of None mean the format's own, and `suits(op_type, format, granularity)`, which says what it is chosen for: no
two of them claim the same weight. One that says `NEEDS_DATA` is also given `layer`, what data say about the input of
the weight's layer (`summaries/evidence.py`), and `half_scales`; it is chosen, before those without, where there is one.
One that says `SLOW` is chosen only where time is no matter (`--effort thorough`); one that says `QUICK` takes no
longer than sending the weight to another process does.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from numpy.typing import ArrayLike

from onnxq import formats
from onnxq.boundary import typed
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.summaries.evidence import Layer

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


class DataAlgorithm(Protocol):
    def __call__(
        self,
        w: FloatArray,
        format: Format,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
        *,
        layer: Layer,
        half_scales: bool = False,
    ) -> QuantizedTensor: ...


_MODULES = {
    path.stem: importlib.import_module(f"onnxq.algorithms.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("[!_]*.py"))
}
_NEEDS_DATA = {word: module for word, module in _MODULES.items() if getattr(module, "NEEDS_DATA", False)}
#: The algorithms that need nothing but the weight, and those that need data, by the folder's file names.
DATA_FREE: Mapping[str, Algorithm] = {
    word: module.quantize for word, module in _MODULES.items() if word not in _NEEDS_DATA
}
WITH_DATA: Mapping[str, DataAlgorithm] = {word: module.quantize for word, module in _NEEDS_DATA.items()}
#: Those of them for which data are followed through the model as it is quantized.
FOLLOWING = frozenset(word for word, module in _NEEDS_DATA.items() if getattr(module, "FOLLOWS", False))
_SLOW = frozenset(word for word, module in _NEEDS_DATA.items() if getattr(module, "SLOW", False))
QUICK = frozenset(word for word, module in _MODULES.items() if getattr(module, "QUICK", False))
WORDS = (*DATA_FREE, *WITH_DATA)


def forget() -> None:
    """Drop what algorithms have prepared for the next part of the same weight."""
    for module in _NEEDS_DATA.values():
        getattr(module, "forget", lambda: None)()


@typed
def get(word: str) -> Algorithm:
    """The algorithm called `word`, which needs no data.

    Raises:
        BadRecipe: there is none; the message lists those there are.
    """
    if word in WITH_DATA:
        raise BadRecipe(f"the algorithm '{word}' needs data; without, choose one of {', '.join(DATA_FREE)}")
    if word not in DATA_FREE:
        raise BadRecipe(f"unknown algorithm '{word}'; choose one of {', '.join(DATA_FREE)}")
    return DATA_FREE[word]


def require(word: str) -> None:
    """Look that there is such an algorithm.

    Args:
        word: the name of an algorithm.

    Raises:
        BadRecipe: there is none; the message lists those there are.
    """
    if word not in WORDS:
        raise BadRecipe(f"unknown algorithm '{word}'; choose one of {', '.join(WORDS)}")


@typed
def quantize(
    w: ArrayLike,
    word: str,
    granularity: Granularity | None = None,
    algorithm: str = "rtn",
    *,
    name: str = "w",
    levels: ArrayLike | None = None,
) -> QuantizedTensor:
    """`w` in the format `word`, its scales and codes chosen by `algorithm`.

    Args:
        w: an array of any shape and floating-point type, or nested lists of numbers.
        word: a name of `formats.names()`, `uniform3` …
        granularity: as of `formats.quantize`.
        algorithm: `rtn` is the format's own rule, whose codes equal those of its other implementations (ggml's for
            `q4_0`); the others choose scales or codes of less error.
        name: of the weight, for what is said about it.
        levels: in the place of the format's own table, as `formats.get` takes them.

    Raises:
        BadRecipe: there is no such format or algorithm.
        BadModel: a number is not finite, or too large for the format.
        ValueError: `w` is no array of real numbers, or has no such axis.
    """
    chosen, format, x = get(algorithm), formats.get(word, levels), arguments.numbers(w)
    if algorithm == "rtn":
        return formats.quantize(x, word, granularity, name=name, levels=levels)
    how = (granularity or formats.natural(format, x.ndim)).within(x.ndim)
    try:
        return chosen(formats.as_float32(x, name), format, how)
    except BadModel as error:
        raise formats.in_weight(error, name) from None


def choose(
    op_type: str, format: Format, granularity: Granularity, *, has_data: bool = False, thorough: bool = False
) -> str:
    """The algorithm that measured best (docs/algorithms.md): the one that claims such weights.

    Args:
        op_type: of the node that reads the weight.
        format, granularity: that it will have.
        has_data: whether there is evidence about the layer.
        thorough: whether it may take many times as long; those that do are asked first then.
    """
    with_data = sorted(WITH_DATA, key=lambda word: word not in _SLOW)
    words = (*(word for word in with_data if thorough or word not in _SLOW), *DATA_FREE) if has_data else DATA_FREE
    return next((word for word in words if _MODULES[word].suits(op_type, format, granularity)), PLAIN)

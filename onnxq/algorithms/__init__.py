"""Which codes: ways of choosing the numbers that represent a weight.

One file each; the file name is the word. Each defines `quantize(w, format, granularity, scales, zero_points)`, where
scales of None mean the format's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Protocol

from numpy.typing import ArrayLike

from onnxq import formats
from onnxq.algorithms import mse, rtn, squant
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments


class Algorithm(Protocol):
    def __call__(
        self,
        w: FloatArray,
        format: Format,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor: ...


#: The algorithms that need nothing but the weight.
DATA_FREE: Mapping[str, Algorithm] = {"mse": mse.quantize, "rtn": rtn.quantize, "squant": squant.quantize}


def get(word: str) -> Algorithm:
    """The algorithm called `word`.

    Raises:
        BadRecipe: there is none; the message lists those there are.
    """
    if word not in DATA_FREE:
        raise BadRecipe(f"unknown algorithm '{word}'; choose one of {', '.join(DATA_FREE)}")
    return DATA_FREE[word]


def quantize(
    w: ArrayLike, word: str, granularity: Granularity | None = None, algorithm: str = "rtn", *, name: str = "w"
) -> QuantizedTensor:
    """`w` in the format `word`, its scales and codes chosen by `algorithm`.

    Args:
        w: an array of any shape and floating-point type, or nested lists of numbers.
        word: a name of `formats.names()`, `uniform3` …
        granularity: as of `formats.quantize`.
        algorithm: `rtn` is the format's own rule, whose codes equal those of its other implementations (ggml's for
            `q4_0`); the others choose scales or codes of less error.
        name: of the weight, for what is said about it.

    Raises:
        BadRecipe: there is no such format or algorithm.
        BadModel: a number is not finite, or too large for the format.
        ValueError: `w` is no array of real numbers, or has no such axis.
    """
    chosen, format, x = get(algorithm), formats.get(word), arguments.numbers(w)
    if algorithm == "rtn":
        return formats.quantize(x, word, granularity, name=name)
    how = (granularity or formats.natural(format, x.ndim)).within(x.ndim)
    try:
        return chosen(formats.as_float32(x, name), format, how)
    except BadModel as error:
        raise formats.in_weight(error, name) from None


_only: ContextVar[str | None] = ContextVar("algorithm", default=None)


@contextlib.contextmanager
def only(word: str | None) -> Iterator[None]:
    """Within, `choose` has no choice: every weight takes the algorithm `word`; None leaves it free.

    Raises:
        BadRecipe: there is no such algorithm.
    """
    if word is not None:
        get(word)
    before = _only.set(word)
    try:
        yield
    finally:
        _only.reset(before)


def choose(op_type: str, format: Format, granularity: Granularity) -> str:
    """The algorithm that measured best (docs/algorithms.md), or the one that the user named (`only`).

    squant gains 1 to 14 dB at the outputs of convolutional networks; for matrix products, whose inputs are centred by a
    normalization, it changes nothing. mse is worth a third of a dB on 4-bit weights, and much of the likelihood that a
    language model would lose.
    """
    if (named := _only.get()) is not None:
        return named
    if format.bits <= 4:
        return "mse"
    is_convolution = op_type in ("Conv", "ConvTranspose")
    return "squant" if is_convolution and format.bits == 8 and granularity.block is None else "rtn"

"""Which codes: ways of choosing the numbers that represent a weight.

One file each; the file name is the word. Each defines `quantize(w, format, granularity, scales, zero_points)`, where
scales of None mean the format's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from onnxq.algorithms import mse, rtn, squant
from onnxq.errors import BadRecipe
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor


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
        raise BadRecipe(f"there is no algorithm '{word}'; choose one of {', '.join(DATA_FREE)}")
    return DATA_FREE[word]


def choose(op_type: str, format: Format, granularity: Granularity) -> str:
    """The algorithm that measured best (docs/algorithms.md).

    squant gains 1 to 14 dB at the outputs of convolutional networks; for matrix products, whose inputs are centred by a
    normalization, it changes nothing. mse is worth a third of a dB on 4-bit weights, and much of the likelihood that a
    language model would lose.
    """
    if format.bits <= 4:
        return "mse"
    is_convolution = op_type in ("Conv", "ConvTranspose")
    return "squant" if is_convolution and format.bits == 8 and granularity.block is None else "rtn"

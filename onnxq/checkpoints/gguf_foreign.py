"""ggml's types that are no formats of onnxq.

IQ4_NL and IQ4_XS index a table of integers, which int8 in blocks of 32 holds as they are; the others are decoded by the
package `gguf`.

Source: ggml-common.h of ggml and gguf's quants.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.errors import BadData
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.layouts import from_low_first

#: By ggml's number: its name, the weights of a block, and its bytes.
BLOCKS = {
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    40: ("NVFP4", 64, 36),
}
TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def nbytes(number: int, size: int) -> int:
    """Bytes of so many weights, whole blocks of them."""
    _, block, each = BLOCKS[number]
    return size // block * each


def format_of(number: int) -> formats.Format | None:
    """The format whose codes hold the type as it is; None: it is decoded to floats."""
    return formats.get("int8") if BLOCKS[number][0] in ("IQ4_NL", "IQ4_XS") else None


def decoded(name: str, number: int, raw: NDArray[np.uint8], shape: Sequence[int]) -> QuantizedTensor | NDArray:
    """The tensor `name` of ggml's type `number`.

    Raises:
        BadData: the package that decodes it is not there, or does not.
    """
    word, _, each = BLOCKS[number]
    blocks = raw.reshape(-1, each)
    if word == "IQ4_NL":
        return _of_table(blocks[:, 2:].reshape(-1, 16), _half(blocks[:, :2])[:, 0], shape)
    if word == "IQ4_XS":
        high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int32)
        fours = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8).astype(np.int32)
        steps = fours | ((high >> (2 * np.arange(8))) & 3) << 4
        scales = _half(blocks[:, :2]).astype(np.float32) * (steps - 32).astype(np.float32)
        return _of_table(blocks[:, 8:].reshape(-1, 16), scales.reshape(-1), shape)
    try:
        import gguf

        kind = gguf.GGMLQuantizationType(number)
        floats = gguf.quants.dequantize(np.ascontiguousarray(raw).reshape(*shape[:-1], -1), kind)
    except (ImportError, NotImplementedError, AttributeError):
        raise BadData(f"tensor '{name}' is of ggml's {word}, which the package gguf decodes: install gguf") from None
    return np.asarray(floats, np.float32).reshape(shape)


def _of_table(packed: NDArray[np.uint8], scales: NDArray, shape: Sequence[int]) -> QuantizedTensor:
    """Blocks of 32, the first 16 of which lie in the low nibbles."""
    nibbles = from_low_first(packed, 4, 32)
    codes = TABLE[np.concatenate([nibbles[:, 0::2], nibbles[:, 1::2]], axis=1)]
    groups = (*shape[:-1], shape[-1] // 32)
    granularity = Granularity(len(shape) - 1, 32)
    return QuantizedTensor(formats.get("int8"), granularity, codes.reshape(shape), scales.reshape(groups))


def _half(raw: NDArray[np.uint8]) -> NDArray[np.float16]:
    return np.ascontiguousarray(raw).view("<f2")

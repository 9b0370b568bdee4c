"""What a stored weight may become in a model: the same numbers wherever there is such a form, else the nearest ones.

    1. itself
    2. integers of fewer bits, or of another name (q6_k, ternary): int4, int8, uint4, uint8 of the same codes and scales
    3. floats of 4 bits (mxfp4, nvfp4): int8 with twice the code and half the scale
    4. nf4 with scales of 8 bits: nf4 with those scales as floats
    5. a minimum next to a multiple of the scale: uint4 or uint8 with a zero point, and the same codes
    6. 8-bit integers, rounded to nearest

The first four lose nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq import algorithms, formats
from onnxq.checkpoints.stored import Stored
from onnxq.errors import BadModel
from onnxq.formats import Format, Granularity, QuantizedTensor

#: Blocks that kernels have, the longest first.
BLOCKS = (256, 128, 64, 32, 16)
#: The most by which a zero point may be off a whole number for the codes to be kept, in steps.
NEAR = 1 / 32
MICRO = ("mxfp4", "nvfp4", "e2m1")
#: Of the stored weight, or of floats where no format holds it.
Make = Callable[[Any], QuantizedTensor]


@dataclass(frozen=True)
class Form:
    """One of them.

    Attributes:
        word: of the format.
        block: weights that share a scale; None: one scale an output.
        make: of the stored weight the one in this form, [out, in] both.
        is_exact: whether it stands for the same numbers.
        half_scales: whether its scales are float16.
    """

    word: str
    block: int | None
    make: Make
    is_exact: bool = True
    half_scales: bool = False

    @property
    def format(self) -> Format:
        return formats.get(self.word)


def block_for(group: int, k: int) -> int | None:
    """The longest block of a kernel that fills groups of this size in rows of `k`; None where none does.

    Where all of a row shares one scale any block will do.
    """
    if group >= k:
        return next((block for block in BLOCKS if block <= k), BLOCKS[-1])
    return next((block for block in BLOCKS if group % block == 0), None)


def exact_forms(stored: Stored) -> Iterator[Form]:
    """Those that lose nothing, the nearest to the stored one first."""
    format, k = stored.format, stored.shape[1]
    if format is None:
        return
    group = stored.granularity.block
    if group is None:
        yield Form(format.name, None, lambda q: q)
    elif format.has_fixed_block or format.has_minimum or not format.is_integer or format.base is not None:
        yield Form(format.name, group, lambda q: q, half_scales=stored.half_scales)
    if group is None:
        return
    for block in dict.fromkeys((block_for(group, k), group)):
        if block is not None:
            yield from _of_block(format, block, k, stored.half_scales)


def _of_block(format: Format, block: int, k: int, half: bool) -> Iterator[Form]:
    if format.is_integer and not format.has_minimum:
        sign = "int" if format.code_type == np.int8 else "uint"
        for bits in (2, 4, 8):
            if bits >= format.bits:
                word = f"{sign}{bits}"
                yield Form(word, block, functools.partial(_integers, word=word, block=block), half_scales=half)
    elif format.name in MICRO:
        yield Form("int8", block, lambda q: _doubled(q, block))
    elif format.levels is not None:
        base = format.name if format.base is None else format.base.name
        yield Form(base, block, lambda q: _plain(q, base, block))


def rounded_forms(stored: Stored) -> Iterator[Form]:
    """Those that stand for other numbers, the nearest first."""
    format, block = stored.format, stored.granularity.block
    if format is not None and format.has_minimum and format.base is None and block is not None:
        for kernel in dict.fromkeys((block_for(block, stored.shape[1]), block)):
            if kernel is not None:
                word = "uint4" if format.bits <= 4 else "uint8"
                yield Form(word, kernel, functools.partial(_pointed, word=word, block=kernel), is_exact=False)
    word = "uint8" if format is not None and format.has_minimum else "int8"
    short = 32 if block is None or block % 32 == 0 else 16
    yield Form(word, short, lambda q: _encoded(q.dequantize(), word, short), is_exact=False)


def encoded_floats(w: NDArray) -> QuantizedTensor:
    """Floats that no format holds, in 8 bits."""
    return _encoded(np.asarray(w, np.float32), "int8", 32)


def _encoded(w: NDArray[np.float32], word: str, block: int) -> QuantizedTensor:
    return algorithms.quantize(w, word, Granularity(1, block), "rtn")


def repeated(steps: NDArray, group: int, block: int, k: int) -> NDArray:
    """Scales, or zero points, of groups as those of shorter blocks."""
    if group == block:
        return steps
    return np.ascontiguousarray(np.repeat(steps, -(-min(group, k) // block), axis=1)[:, : -(-k // block)])


def _spread(q: QuantizedTensor, block: int) -> tuple[NDArray, NDArray | None]:
    assert q.scales is not None and q.granularity.block is not None
    group, k = q.granularity.block, q.shape[1]
    zeros = None if q.zero_points is None else repeated(q.zero_points, group, block, k)
    return repeated(q.scales, group, block, k), zeros


def _integers(q: QuantizedTensor, word: str, block: int) -> QuantizedTensor:
    scales, zeros = _spread(q, block)
    return QuantizedTensor(formats.get(word), Granularity(1, block), q.codes, scales, zeros)


def doubled(q: QuantizedTensor) -> QuantizedTensor:
    """Floats of 4 bits (`MICRO`) as int8 of twice the code and half the scale: the same numbers."""
    assert q.format.levels is not None and q.scales is not None
    codes = np.rint(2 * q.format.levels).astype(np.int8)[q.codes]
    return QuantizedTensor(formats.get("int8"), q.granularity, codes, q.scales.astype(np.float32) / np.float32(2))


def _doubled(q: QuantizedTensor, block: int) -> QuantizedTensor:
    made = doubled(q)
    return made if q.granularity.block == block else _integers(made, "int8", block)


def _plain(q: QuantizedTensor, word: str, block: int) -> QuantizedTensor:
    scales, _ = _spread(q, block)
    return QuantizedTensor(formats.get(word), Granularity(1, block), q.codes, scales)


def _pointed(q: QuantizedTensor, word: str, block: int) -> QuantizedTensor:
    """The codes with a zero point in the place of a minimum.

    Raises:
        BadModel: it would lie too far from a whole number, or outside the codes.
    """
    assert q.scales is not None and q.zero_points is not None
    scales, low = q.scales.astype(np.float64), q.zero_points.astype(np.float64)
    points = -np.divide(low, scales, out=np.zeros_like(low), where=scales != 0)
    whole, top = np.rint(points), (1 << formats.get(word).bits) - 1
    is_off = ((scales == 0) & (low != 0)) | (np.abs(points - whole) > NEAR) | (whole < 0) | (whole > top)
    if is_off.any():
        raise BadModel("its minima are no zero points")
    made = QuantizedTensor(
        formats.get(word), q.granularity, q.codes, q.scales.astype(np.float32), whole.astype(np.uint8)
    )
    return _integers(made, word, block)

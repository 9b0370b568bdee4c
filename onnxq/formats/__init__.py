"""Number formats: what stored numbers mean.

One file each; the file name is the word on the command line and the name of the class inside. A format says how a
scale follows from the weights it covers (`fit`), which code stands for which number (`encode`, `decode`), and
nothing about graphs, targets or byte layouts. Families share code by the plain functions of `_affine.py`,
`_codebook.py` and `_cast.py`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadRecipe

FloatArray = NDArray[np.float32]
CodeArray = NDArray[np.generic]
#: Powers of two in 8 bits, 2^(u − 127): the scales of OCP's MX formats.
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)


@dataclass(frozen=True)
class Granularity:
    """Which weights share one scale.

    `Granularity()` is the whole tensor, `Granularity(axis)` one scale for each index of `axis`, and
    `Granularity(axis, block)` one scale for each `block` consecutive weights along `axis` (the last block of a row
    may be short). `axis` counts from the front, as ONNX DequantizeLinear's `axis` and `block_size` do.
    """

    axis: int | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        if self.block is not None and (self.axis is None or self.block < 1):
            raise ValueError(f"a block of {self.block} needs an axis and at least one element")

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the scales of a weight of `shape`, in ONNX DequantizeLinear's convention."""
        if self.axis is None:
            return ()
        if self.block is None:
            return (shape[self.axis],)
        blocks = -(-shape[self.axis] // self.block)
        return (*shape[: self.axis], blocks, *shape[self.axis + 1 :])

    def spread(self, scales: NDArray, shape: Sequence[int]) -> NDArray:
        """Scales so shaped that they broadcast against a weight of `shape`."""
        if self.axis is None:
            return scales
        if self.block is None:
            return scales.reshape([-1 if i == self.axis else 1 for i in range(len(shape))])
        spread = np.repeat(scales, self.block, axis=self.axis)
        return spread[(slice(None),) * self.axis + (slice(shape[self.axis]),)]

    def groups(self, w: NDArray) -> tuple[NDArray, tuple[int, ...]]:
        """A view of `w` and the axes of it to reduce so that one value for each scale remains.

        A short last block is filled up with zeros: every format's range includes zero, so they change no scale.
        """
        if self.axis is None:
            return w, tuple(range(w.ndim))
        if self.block is None:
            return w, tuple(i for i in range(w.ndim) if i != self.axis)
        missing = -w.shape[self.axis] % self.block
        if missing:
            w = np.pad(w, [(0, missing if i == self.axis else 0) for i in range(w.ndim)])
        blocks = w.shape[self.axis] // self.block
        return w.reshape(*w.shape[: self.axis], blocks, self.block, *w.shape[self.axis + 1 :]), (self.axis + 1,)


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A weight in a number format, before any byte layout.

    `codes` has the weight's own shape, one element a code; `scales` (float32) and `zero_points` (the dtype of
    `codes`, None when all are zero) have `granularity.scale_shape(shape)`. Formats without scales (float16) hold
    None.
    """

    format: Format
    granularity: Granularity
    codes: CodeArray
    scales: FloatArray | None = None
    zero_points: CodeArray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def dequantize(self) -> FloatArray:
        """The float32 weight that these codes stand for."""
        return self.format.decode(self)

    @property
    def nbytes(self) -> int:
        """Bytes of codes (packed), float32 scales and zero points (packed)."""
        bits = self.codes.size * self.format.bits
        if self.zero_points is not None:
            bits += self.zero_points.size * self.format.bits
        return -(-bits // 8) + (0 if self.scales is None else 4 * self.scales.size)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / max(1, self.codes.size)


class Format(Protocol):
    """What every file of this folder defines, under its own file name."""

    name: str
    bits: int
    #: Weights a scale covers along the contraction axis when the user names no block; None: one scale a channel.
    default_block: int | None

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray | None, CodeArray | None]:
        """The format's own scales and zero points for `w` (round to nearest, nothing clipped)."""

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: FloatArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        """Codes of `w`; with `scales` None those of `fit` are used."""

    def decode(self, q: QuantizedTensor) -> FloatArray:
        """The float32 weight of `q`."""


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all formats, from the folder's file names."""
    return tuple(sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py")))


@functools.cache
def get(name: str) -> Format:
    """The format called `name`.

    Raises:
        BadRecipe: no file of that name; the message lists those there are.
    """
    if name not in names():
        raise BadRecipe(f"there is no number format '{name}'; choose one of {', '.join(names())}")
    found: Format = getattr(importlib.import_module(f"onnxq.formats.{name}"), name)()
    return found

"""Which weights share one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onnxq.formats.kinds import arguments


@dataclass(frozen=True)
class Granularity:
    """Which weights share one scale.

    `Granularity()` is the whole tensor, `Granularity(axis)` one scale for each index of `axis`, and
    `Granularity(axis, block)` one scale for each `block` consecutive weights along `axis` (the last block of a row
    may be short). A negative `axis` counts from the back, as numpy has it; in a `QuantizedTensor` it counts from the
    front, as ONNX DequantizeLinear's `axis` and `block_size` do.

    Raises:
        ValueError: a block without an axis, or of less than one weight; and, from every method, an axis that the
            weight does not have.
    """

    axis: int | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        for name in ("axis", "block"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, arguments.whole(value, f"the {name}"))
        if self.block is not None and (self.axis is None or self.block < 1):
            raise ValueError(f"a block of {self.block} needs an axis and at least one element")

    def within(self, rank: int) -> Granularity:
        """The same for a weight of so many dimensions, its axis counted from the front.

        Args:
            rank: dimensions of the weight.
        """
        if self.axis is None or 0 <= self.axis < rank:
            return self
        return Granularity(arguments.axis_of(self.axis, rank), self.block)

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the scales of a weight of `shape`, in ONNX DequantizeLinear's convention."""
        if self.axis is None:
            return ()
        axis = arguments.axis_of(self.axis, len(shape))
        if self.block is None:
            return (shape[axis],)
        return (*shape[:axis], -(-shape[axis] // self.block), *shape[axis + 1 :])

    def spread(self, scales: NDArray, shape: Sequence[int]) -> NDArray:
        """Scales so shaped that they broadcast against a weight of `shape`.

        Args:
            scales: of `scale_shape(shape)`.
        """
        if self.axis is None:
            return scales
        axis = arguments.axis_of(self.axis, len(shape))
        if self.block is None:
            return scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        spread = np.repeat(scales, min(self.block, max(1, shape[axis])), axis=axis)
        return spread[(slice(None),) * axis + (slice(shape[axis]),)]

    def groups(self, w: NDArray, fill: Literal["constant", "edge"] = "constant") -> tuple[NDArray, tuple[int, ...]]:
        """A view of `w` and the axes of it to reduce so that one value for each scale remains.

        A short last block is filled up with zeros, which change no scale where the range includes zero anyway, or
        ("edge") with its last element.

        Args:
            fill: what a short last block is filled up with.
        """
        if self.axis is None:
            return w, tuple(range(w.ndim))
        axis = arguments.axis_of(self.axis, w.ndim)
        if self.block is None:
            return w, tuple(i for i in range(w.ndim) if i != axis)
        block = min(self.block, max(1, w.shape[axis]))
        missing = -w.shape[axis] % block
        if missing:
            w = np.pad(w, [(0, missing if i == axis else 0) for i in range(w.ndim)], mode=fill)
        blocks = w.shape[axis] // block
        return w.reshape(*w.shape[:axis], blocks, block, *w.shape[axis + 1 :]), (axis + 1,)

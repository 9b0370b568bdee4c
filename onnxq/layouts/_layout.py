"""What a layout is: the bytes of a quantized weight, of a type and shape that are known before it is computed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import Format, Granularity, QuantizedTensor


@dataclass(frozen=True)
class Outline:
    """What is known of a quantized weight before it is computed.

    Attributes:
        scale_type: the type in which its scales lose nothing; None: it has none.

    Raises:
        ValueError: a weight of that shape has no such axis.
    """

    format: Format
    granularity: Granularity
    shape: tuple[int, ...]
    scale_type: np.dtype | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "granularity", self.granularity.within(len(self.shape)))

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """Of the scales, in ONNX's convention (`Granularity.scale_shape`)."""
        return self.granularity.scale_shape(self.shape)

    @property
    def rows(self) -> int:
        """How many rows of `k` weights it is with the blocked axis last, or its channels first."""
        return math.prod(self.shape) // self.k if self.k else self._others

    @property
    def k(self) -> int:
        """Weights of a row: see `rows`."""
        axis, block = self.granularity.axis, self.granularity.block
        if axis is None:
            return math.prod(self.shape)
        return self._others if block is None else self.shape[axis]

    @property
    def block(self) -> int:
        """Weights of a row that share a scale, the last of which may be missing."""
        return self.granularity.block or self.k

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return 1 if self.granularity.block is None else -(-self.k // self.block)

    @property
    def _others(self) -> int:
        return math.prod(size for i, size in enumerate(self.shape) if i != self.granularity.axis)


class Form(NamedTuple):
    """Type and shape of an array. Codes of a type of less than 8 bits lie in one byte each until they are written."""

    dtype: np.dtype
    shape: tuple[int, ...]


class Layout:
    """`pack(q)`, the array that goes to disk, and what `form` knows of it before."""

    def __init__(self, pack: Callable[[QuantizedTensor], NDArray], form: Callable[[Outline], Form]) -> None:
        self.pack, self.form = pack, form
        functools.update_wrapper(self, pack)

    def __call__(self, q: QuantizedTensor) -> NDArray:
        return self.pack(q)


def layout(
    dtype: type[np.generic] | Callable[[Outline], np.dtype | None], shape: Callable[[Outline], tuple[int, ...]]
) -> Callable[[Callable[[QuantizedTensor], NDArray]], Layout]:
    """Makes a layout of a function: its arrays are of this type and shape, or of those that follow from the outline.

    Args:
        dtype: of the arrays, or a function of the outline that says it.
        shape: of the arrays, from the outline.
    """

    def form(w: Outline) -> Form:
        found = np.dtype(dtype) if isinstance(dtype, type) else dtype(w)
        assert found is not None  # a format that has this part
        return Form(found, shape(w))

    return lambda pack: Layout(pack, form)


def turned(of: Layout) -> Layout:
    """The same with the last two axes exchanged.

    Args:
        of: a layout of two dimensions or more.
    """

    def form(w: Outline) -> Form:
        *before, rows, columns = of.form(w).shape
        return Form(of.form(w).dtype, (*before, columns, rows))

    return Layout(lambda q: np.ascontiguousarray(np.swapaxes(of(q), -1, -2)), form)


def flat(of: Layout) -> Layout:
    """The same in one dimension.

    Args:
        of: any layout.
    """
    return Layout(lambda q: of(q).reshape(-1), lambda w: Form(of.form(w).dtype, (math.prod(of.form(w).shape),)))


def column(of: Layout) -> Layout:
    """The same as [elements, 1].

    Args:
        of: any layout.
    """
    return Layout(lambda q: of(q).reshape(-1, 1), lambda w: Form(of.form(w).dtype, (math.prod(of.form(w).shape), 1)))


def stacked(of: Layout, count: int) -> Layout:
    """The same of `count` matrices whose rows are one after the other in the weight: [count, rows of each, …]."""

    def form(w: Outline) -> Form:
        rows, *rest = of.form(w).shape
        return Form(of.form(w).dtype, (count, rows // count, *rest))

    def pack(q: QuantizedTensor) -> NDArray:
        array = of(q)
        return array.reshape(count, len(array) // count, *array.shape[1:])

    return Layout(pack, form)


def by_channel(of: Layout) -> Layout:
    """Scales or zero points, one a channel, as [1, …, channels, …, 1], which broadcasts against the weight.

    Args:
        of: a layout of scales or zero points.
    """

    def shape_of(granularity: Granularity, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size if i == granularity.axis else 1 for i, size in enumerate(shape))

    return Layout(
        lambda q: of(q).reshape(shape_of(q.granularity, q.shape)),
        lambda w: Form(of.form(w).dtype, shape_of(w.granularity, w.shape)),
    )

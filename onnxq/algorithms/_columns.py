"""Shared by the algorithms that look at a layer as a matrix product: a weight as a matrix, input by input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor

#: One scale for each column of a [1, columns] row of weights.
_BY_COLUMN = Granularity(1)


@dataclass(eq=False)
class Columns:
    """A weight as a matrix of K inputs by N outputs, the inputs so ordered that those which share scales follow each
    other.

    Attributes:
        w, values: [K, N] what is to be represented, and what the codes stand for.
        codes: [K, N].
        scales, zero_points: [groups, N], of the format's types.
        group: [K], ascending: which of them an input has.
        inputs: [K] which input of the layer each row is.
    """

    format: Format
    w: FloatArray
    values: FloatArray
    codes: CodeArray
    scales: NDArray
    zero_points: NDArray | None
    group: NDArray[np.intp]
    inputs: NDArray[np.intp]

    @classmethod
    def of(cls, w: FloatArray, q: QuantizedTensor, channel: int) -> Self:
        """What `q` is of the weight `w`, whose outputs lie along axis `channel`; each scale belongs to one output, or
        to all."""
        assert q.scales is not None
        scales, zeros = (None if s is None else _scale_rows(s, q, channel) for s in (q.scales, q.zero_points))
        assert scales is not None
        group = _groups(q, channel)
        inputs = np.argsort(group, kind="stable")
        numbers, values, codes = (_flat(each, channel)[inputs] for each in (w, q.dequantize(), q.codes))
        scales, zeros = scales.copy(), None if zeros is None else zeros.copy()
        return cls(q.format, numbers, values, codes, scales, zeros, group[inputs], inputs)

    @property
    def by_input(self) -> NDArray[np.intp]:
        """[K], of each input of the layer: which of the scales it has."""
        found = np.empty_like(self.group)
        found[self.inputs] = self.group
        return found

    def part(self, outputs: slice) -> Self:
        """Some of the outputs, in arrays of their own."""
        zeros = None if self.zero_points is None else self.zero_points[:, outputs].copy()
        w, values = (each[:, outputs].copy() for each in (self.w, self.values))
        codes, scales = self.codes[:, outputs].copy(), self.scales[:, outputs].copy()
        return replace(self, w=w, values=values, codes=codes, scales=scales, zero_points=zeros)

    def rows(self, inputs: slice) -> Self:
        """Some of the inputs, which share one scale for each output, in arrays of their own."""
        group = int(self.group[inputs.start])
        zeros = None if self.zero_points is None else self.zero_points[group : group + 1].copy()
        w, values, codes = self.w[inputs].copy(), self.values[inputs].copy(), self.codes[inputs].copy()
        scales, count = self.scales[group : group + 1].copy(), len(codes)
        every = np.zeros(count, np.intp), np.arange(count)
        return type(self)(self.format, w, values, codes, scales, zeros, *every)

    def take_rows(self, other: Self, inputs: slice, chosen: NDArray[np.bool_]) -> None:
        """The codes and scales that `other`, which is the rows `inputs`, has for those outputs that are chosen."""
        group = int(self.group[inputs.start])
        for mine, its in ((self.codes, other.codes), (self.values, other.values)):
            mine[inputs][:, chosen] = its[:, chosen]
        self.scales[group, chosen] = other.scales[0, chosen]
        if self.zero_points is not None and other.zero_points is not None:
            self.zero_points[group, chosen] = other.zero_points[0, chosen]

    def take(self, other: Self, outputs: slice, chosen: NDArray[np.bool_]) -> None:
        """The codes and scales that `other`, which is the part `outputs`, has for those chosen of them."""
        pairs = [(self.codes, other.codes), (self.scales, other.scales)]
        if self.zero_points is not None and other.zero_points is not None:
            pairs.append((self.zero_points, other.zero_points))
        for mine, its in pairs:
            mine[:, outputs][:, chosen] = its[:, chosen]

    def encode(self, k: int, x: FloatArray) -> FloatArray:
        """Give input `k` the codes nearest to `x` [N]; what they stand for."""
        scales, zeros = self._of_group(int(self.group[k]))
        q = self.format.encode(x[None], _BY_COLUMN, scales, zeros)
        self.codes[k], self.values[k] = q.codes[0], q.dequantize()[0]
        return self.values[k]

    def tried(self, x: FloatArray, scales: NDArray, zero_points: NDArray | None) -> FloatArray:
        """What the codes nearest to `x` [any] stand for, by these scales, one for each."""
        return self.format.encode(x[None], _BY_COLUMN, scales, zero_points).dequantize()[0]

    def decoded(self) -> Self:
        """The same, its values those of its codes and scales."""
        for group in np.unique(self.group):
            inputs = self.group == group
            q = QuantizedTensor(self.format, _BY_COLUMN, self.codes[inputs], *self._of_group(int(group)))
            self.values[inputs] = q.dequantize()
        return self

    def steps(self, inputs: slice) -> FloatArray:
        """[inputs, N]: what a scale larger by 1 adds to each number of these inputs, which share one."""
        ones = np.ones(self.codes.shape[1], self.scales.dtype)
        zeros = self._of_group(int(self.group[inputs.start]))[1]
        if zeros is not None and self.format.has_minimum:
            zeros = np.zeros_like(zeros)
        return QuantizedTensor(self.format, _BY_COLUMN, self.codes[inputs], ones, zeros).dequantize()

    def tensor(self, like: QuantizedTensor, channel: int) -> QuantizedTensor:
        """The weight in the shape it came in."""
        codes = np.empty_like(self.codes)
        codes[self.inputs] = self.codes
        turned = np.moveaxis(like.codes, channel, -1).shape
        in_place = np.ascontiguousarray(np.moveaxis(codes.reshape(turned), -1, channel))
        assert like.scales is not None
        scales, zeros = _as(self.scales, like.scales, like, channel), like.zero_points
        if zeros is not None and self.zero_points is not None:
            zeros = _as(self.zero_points, zeros, like, channel)
        return QuantizedTensor(self.format, like.granularity, in_place, scales, zeros)

    def _of_group(self, group: int) -> tuple[NDArray, NDArray | None]:
        return self.scales[group], None if self.zero_points is None else self.zero_points[group]


def _as(own: NDArray, there: NDArray, like: QuantizedTensor, channel: int) -> NDArray:
    """Scales or zero points [groups, N] in the shape of those that are `there`."""
    if like.granularity.block is None:
        return own.reshape(-1)[: there.size].reshape(there.shape)
    turned = np.moveaxis(there, channel, -1).shape
    return np.ascontiguousarray(np.moveaxis(own.reshape(turned), -1, channel))


def _flat(x: NDArray, channel: int) -> NDArray:
    """[K, N], of an array like the weight."""
    return np.moveaxis(x, channel, -1).reshape(-1, x.shape[channel])


def _groups(q: QuantizedTensor, channel: int) -> NDArray[np.intp]:
    """[K] the number of each input's scale, among those of one output."""
    shape = tuple(1 if i == channel else size for i, size in enumerate(q.shape))
    if q.granularity.block is None:
        return np.zeros(int(np.prod(shape)), np.intp)
    numbers = np.arange(np.prod(q.granularity.scale_shape(shape), dtype=np.intp))
    return _flat(q.granularity.spread(numbers.reshape(q.granularity.scale_shape(shape)), shape), channel)[:, 0]


def _scale_rows(scales: NDArray, q: QuantizedTensor, channel: int) -> NDArray:
    if q.granularity.block is None:
        return np.broadcast_to(scales, (1, q.shape[channel]))
    return _flat(scales, channel)

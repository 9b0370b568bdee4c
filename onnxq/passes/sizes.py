"""Shapes that exporters compute, by Shape, Gather, Slice and Concat: what is known of each of their elements.

Asked by what looks for the heads of an attention. (`dims/` knows more of a whole model, and folds shapes by it.)
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types

#: A size as a Reshape asks for it: a number, or that of an axis of some value.
Size = int | tuple[ir.Value, int]
#: Elements that a shape may have, and nodes behind each other that compute it.
MOST, DEEPEST = 8, 32
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


def sizes_of(value: ir.Value | None, types: Types | None = None) -> list[Size] | None:
    """The elements of a shape; None if it is not known of each of them what it is.

    1. Constants are numbers.
    2. Shape gives the axes of a value, as many as `types` says that it has, or those that a Gather takes out of it.
    3. Gather, Slice and Concat choose and join; Unsqueeze, Squeeze, Reshape, Cast and Identity leave a size what it is.

    Args:
        types: what is inferred for the model; without it no Shape is read whole.
    """
    return _Reader(Types() if types is None else types).read(value)


class _Reader:
    """Reads each value once, however many ways lead to it."""

    def __init__(self, types: Types) -> None:
        self._types, self._depth = types, 0
        self._known: dict[ir.Value, list[Size] | None] = {}

    def read(self, value: ir.Value | None) -> list[Size] | None:
        if value is None or self._depth >= DEEPEST:
            return None
        if value not in self._known:
            self._depth += 1
            found = self._found(value)
            self._depth -= 1
            self._known[value] = None if found is None or len(found) > MOST else found
        return self._known[value]

    def _found(self, value: ir.Value) -> list[Size] | None:
        tensor, node = graph.constant(value), value.producer()
        if tensor is not None:
            is_plain = tensor.dtype in _INTEGERS and tensor.size <= MOST
            return [int(each) for each in tensor.numpy().reshape(-1)] if is_plain else None
        if node is None:
            return None
        if graph.is_op(node, "Concat"):
            parts = [self.read(each) for each in node.inputs]
            return None if None in parts else [size for part in parts if part is not None for size in part]
        to = graph.attribute_int(node, "to", ir.DataType.INT64) if graph.is_op(node, "Cast") else ir.DataType.INT64
        if graph.is_op(node, "Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape") and to in _INTEGERS:
            found = self.read(node.inputs[0])
            return found if found is not None and len(found) == 1 else None
        if graph.is_op(node, "Gather"):
            return self._gathered(node)
        if graph.is_op(node, "Slice"):
            return self._sliced(node)
        return self._axes(node) if graph.is_op(node, "Shape") else None

    def _axes(self, shape: ir.Node) -> list[Size] | None:
        of = shape.inputs[0]
        rank = None if of is None else self._types.of(of).rank
        if of is None or rank is None:
            return None
        axes = range(rank)
        start, end = graph.attribute_int(shape, "start", 0), graph.attribute_int(shape, "end", rank)
        return [(of, axis) for axis in axes[start:end]]

    def _gathered(self, node: ir.Node) -> list[Size] | None:
        indices = self._numbers(node.inputs[1])
        if indices is None:
            return None
        whole = _whole(node.inputs[0])
        if whole is not None and min(indices, default=-1) >= 0:
            return [(whole, axis) for axis in indices]  # whatever its rank is
        sizes = self.read(node.inputs[0])
        fits = sizes is not None and all(-len(sizes) <= index < len(sizes) for index in indices)
        return [sizes[index] for index in indices] if fits and sizes is not None else None

    def _sliced(self, node: ir.Node) -> list[Size] | None:
        bounds = [self._numbers(each) for each in node.inputs[1:]]
        if len(bounds) not in (2, 3, 4) or not bounds[0] or not bounds[1] or bounds[3:] not in ([], [[1]]):
            return None
        begin, end = bounds[0][0], bounds[1][0]
        whole, sizes = _whole(node.inputs[0]), self.read(node.inputs[0])
        if sizes is None:  # one axis, whatever the rank is
            return [(whole, begin)] if whole is not None and 0 <= begin == end - 1 else None
        return sizes[begin:end]

    def _numbers(self, value: ir.Value | None) -> list[int] | None:
        sizes: Sequence[Size] = self.read(value) or ()
        numbers = [each for each in sizes if isinstance(each, int)]
        return numbers if numbers and len(numbers) == len(sizes) else None


def _whole(value: ir.Value | None) -> ir.Value | None:
    """Whose shape this is, all of it."""
    node = graph.producer(value)
    return node.inputs[0] if node is not None and graph.is_op(node, "Shape") and not node.attributes else None

"""Walks over a graph: which products a value is made of, and where two of them meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.weights import Weight

#: Operators that hand on the numbers of their first input, in another type or shape at most.
_CARRIES = ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "QuantizeLinear", "DequantizeLinear")
#: What comes out of these says nothing about numbers.
_SHAPES = ("Shape", "Size")
_ATTENTIONS = {graph.MICROSOFT: ("GroupQueryAttention", "MultiHeadAttention"), "": ("Attention",)}


def carried(value: ir.Value | None) -> ir.Value | None:
    """The value whose numbers these are."""
    while value is not None and (node := value.producer()) is not None and graph.is_op(node, *_CARRIES):
        value = node.inputs[0]
    return value


def readers(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Whoever reads the numbers of a value."""
    pending = [value]
    while pending:
        for use in pending.pop().uses():
            if graph.is_op(use.node, *_CARRIES) and use.idx == 0:
                pending.append(use.node.outputs[0])
            else:
                yield use.node, use.idx


def vector(value: ir.Value | None, size: int) -> NDArray[np.float32] | None:
    """A constant of `size` numbers along the last axis."""
    tensor = graph.constant(carried(value))
    if tensor is None or tensor.dtype not in graph.FLOATS or tensor.size != size or tensor.shape[-1] != size:
        return None
    return tensor.numpy().astype(np.float32).reshape(-1)


def scalar(value: ir.Value | None) -> float | None:
    """A constant of a single number."""
    tensor = graph.constant(carried(value))
    if tensor is None or tensor.size != 1 or tensor.dtype not in graph.FLOATS:
        return None
    return float(tensor.numpy().astype(np.float64).reshape(-1)[0])


class Sources:
    """Of which products with weights values are made."""

    def __init__(self, products: Mapping[ir.Node, Weight]) -> None:
        self._products = products
        self._known: dict[ir.Value, frozenset[ir.Node]] = {}

    def of(self, value: ir.Value | None) -> frozenset[ir.Node]:
        """The last products with weights on every way to `value`."""
        if value is None:
            return frozenset()
        pending = [value]
        while pending:  # not by recursion: graphs are thousands of nodes deep
            at = pending[-1]
            node = at.producer()
            if at in self._known:
                pending.pop()
            elif node is None or graph.is_op(node, *_SHAPES):
                self._known[at] = frozenset()
            elif node in self._products:
                self._known[at] = frozenset({node})
            else:
                given = [x for x in node.inputs if x is not None]
                missing = [x for x in given if x not in self._known]
                if missing:
                    pending += missing
                else:
                    self._known[at] = frozenset().union(*(self._known[x] for x in given))
        return self._known[value]

    def way(self, value: ir.Value | None) -> Iterator[ir.Node]:
        """The nodes between `value` and the products that it is made of, from its end on."""
        pending, seen = [value], set[ir.Node]()
        while pending:
            at = pending.pop(0)
            node = graph.producer(at)
            if node is None or node in seen or node in self._products or not self.of(at):
                continue
            seen.add(node)
            yield node
            pending += node.inputs

    def attention(self, value: ir.Value | None) -> tuple[frozenset[ir.Node], ...] | None:
        """Of which products queries, keys and values are, that `value` is mixed of."""
        for node in self.way(value):
            if node.op_type in _ATTENTIONS.get(node.domain, ()):
                q, k, v = (self.of(x) for x in node.inputs[:3])
                return q, k or q, v or k or q
            if not self._multiplies(node):
                continue
            scores = next((inner for inner in self.way(node.inputs[0]) if self._multiplies(inner)), None)
            if scores is not None:
                return (*(self.of(x) for x in scores.inputs[:2]), self.of(node.inputs[1]))
        return None

    def _multiplies(self, node: ir.Node) -> bool:
        """Whether it is a product of two values that products made."""
        return graph.is_op(node, "MatMul") and all(self.of(x) for x in node.inputs)

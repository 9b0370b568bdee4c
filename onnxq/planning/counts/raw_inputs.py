"""Which nodes take inputs as they are measured, which may be more than shorter floats hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.planning.counts.spans import HALF
from onnxq.planning.counts.uses import MOVES

#: Why such a node is kept.
REASON = "scales inputs that are larger than half precision holds"
#: Inputs of which so many are one, or that are so far from 0, are beyond float16 a few times as far from there.
_MOST_UNIT, _MOST_OFFSET = 2.0**14, 2.0**HALF
_AFFINE = ("Add", "Sub", "Mul", "Div")


def raw_in(model: ir.Model) -> dict[ir.Node, None]:
    """Nodes between an input of floats and what is made of it in numbers near 1: a table's columns less their means,
    by their deviations, as a BatchNormalization too. Only where such a constant is so large that numbers around it
    are infinite in float16, or rounded by 1 or more."""
    found: dict[ir.Node, None] = {}
    for value in model.graph.inputs:
        if value.dtype in graph.FLOATS and graph.constant(value) is None:
            for path in _paths(value):
                found.update(dict.fromkeys(path))
    return found


def _paths(given: ir.Value) -> Iterator[tuple[ir.Node, ...]]:
    """From an input, as far as its numbers are only moved, added to and multiplied by constants; those with large ones.
    No two lead to one node."""
    left: list[tuple[ir.Value, tuple[ir.Node, ...], bool]] = [(given, (), False)]
    while left:
        value, path, is_large = left.pop()
        readers = dict.fromkeys(value.consumers())
        further = [node for node in readers if _stays_raw(node, value)]
        if is_large and (len(further) < len(readers) or value.is_graph_output()):
            yield path
        left += [(made, (*path, node), is_large or _is_large(node, value)) for node in further for made in node.outputs]


def _stays_raw(node: ir.Node, value: ir.Value) -> bool:
    if graph.is_op(node, *MOVES, "BatchNormalization"):
        return node.inputs[0] is value
    others = [each for each in node.inputs if each is not value]
    return graph.is_op(node, *_AFFINE) and len(others) == 1 and graph.constant(others[0]) is not None


def _is_large(node: ir.Node, value: ir.Value) -> bool:
    if node.op_type == "BatchNormalization":
        mean, variance = (_sizes(each) for each in node.inputs[3:5])
        return bool((mean > _MOST_OFFSET).any() or (variance > _MOST_UNIT**2).any())
    if node.op_type not in _AFFINE:
        return False
    (sizes,) = (_sizes(each) for each in node.inputs if each is not value)
    if node.op_type == "Mul":
        return bool(((sizes > 0) & (sizes < 1 / _MOST_UNIT)).any())
    return bool((sizes > (_MOST_UNIT if node.op_type == "Div" else _MOST_OFFSET)).any())


def _sizes(value: ir.Value | None) -> NDArray[np.float64]:
    """A constant's numbers without their signs, those that are finite."""
    tensor = graph.constant(value)
    numbers = np.empty(0) if tensor is None else np.abs(tensor.numpy().astype(np.float64))
    return numbers[np.isfinite(numbers)]

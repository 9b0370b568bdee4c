"""Which nodes take inputs as they are measured, which may be more than shorter floats hold."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

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
#: Types of what is measured or counted, as far as float16 may not hold it.
_MEASURED = graph.FLOATS - {ir.DataType.FLOAT16} | {
    *(ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
    *(ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
}


def raw_in(model: ir.Model) -> dict[ir.Node, None]:
    """Nodes between inputs and what is made of them in numbers near 1: a table's columns less their means, by their
    deviations, as a BatchNormalization too. Only where such a constant is so large that numbers around it are infinite
    in float16, or rounded by 1 or more."""
    raw = _raw_nodes(value for value in model.graph.inputs if graph.constant(value) is None)
    large = [node for node in raw if _is_large(node)]
    before = _reached(large, lambda node: (value.producer() for value in node.inputs if value is not None), raw)
    behind = _reached(large, lambda node: (each for value in node.outputs for each in value.consumers()), raw)
    return {node: None for node in raw if node in before or node in behind}


def _raw_nodes(given: Iterable[ir.Value]) -> dict[ir.Node, None]:
    """Those whose numbers are inputs, only moved, joined, added to and multiplied by constants."""
    left = [value for value in given if value.dtype in _MEASURED]
    raw, found = set(left), dict[ir.Node, None]()
    while left:
        for node in left.pop().consumers():
            if node not in found and _stays_raw(node, raw):
                found[node] = None
                left += node.outputs
                raw.update(node.outputs)
    return found


def _reached(
    start: Iterable[ir.Node], next_to: Callable[[ir.Node], Iterable[ir.Node | None]], among: Container[ir.Node]
) -> set[ir.Node]:
    left = list(start)
    found = set(left)
    while left:
        for node in next_to(left.pop()):
            if node is not None and node in among and node not in found:
                found.add(node)
                left.append(node)
    return found


def _stays_raw(node: ir.Node, raw: Container[ir.Value | None]) -> bool:
    if graph.is_op(node, *MOVES, "BatchNormalization"):
        return node.inputs[0] in raw
    if graph.is_op(node, "Cast"):
        return graph.attribute_int(node, "to", 0) in _MEASURED
    others = [value for value in node.inputs if value not in raw]
    if graph.is_op(node, "Concat"):
        return all(graph.constant(value) is not None for value in others)
    return graph.is_op(node, *_AFFINE) and len(others) == 1 and graph.constant(others[0]) is not None


def _is_large(node: ir.Node) -> bool:
    if node.op_type == "BatchNormalization":
        mean, variance = (_sizes(each) for each in node.inputs[3:5])
        return bool((mean > _MOST_OFFSET).any() or (variance > _MOST_UNIT**2).any())
    if node.op_type not in _AFFINE:
        return False
    (sizes,) = (_sizes(each) for each in node.inputs if graph.constant(each) is not None)
    if node.op_type == "Mul":
        return bool(((sizes > 0) & (sizes < 1 / _MOST_UNIT)).any())
    return bool((sizes > (_MOST_UNIT if node.op_type == "Div" else _MOST_OFFSET)).any())


def _sizes(value: ir.Value | None) -> NDArray[np.float64]:
    """A constant's numbers without their signs, those that are finite."""
    tensor = graph.constant(value)
    numbers = np.empty(0) if tensor is None else np.abs(tensor.numpy().astype(np.float64))
    return numbers[np.isfinite(numbers)]

"""Slices that cut nothing off go: exporters write them for indices that name everything, as x[:, :, :]."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.dimensions import sizes_of
from onnxq.model.dims.known import Dims
from onnxq.passes.normalize.remove_identities import bypass

#: Elements that no memory holds: a size that would make so many is not met.
_BEYOND_MEMORY = 1 << 40
#: From here on, bounds mean the end, whatever the size.
_END = (1 << 31) - 1


class WholeSlices(ir.passes.InPlacePass):
    """Let the readers of y = Slice(x) read x, where y is all of x.

    1. Every start is 0 and every step 1, as constants.
    2. Every end is the size of its dimension or more: a known size, or an end that means any, or one that a tensor of
       the other sizes could not have in any memory (exporters write 1000000000). What a file declares of values between
       nodes is not known: it is what the exporter saw.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in graph.nodes(model) if graph.is_op(node, "Slice") and _from_the_start(node)]
        sizes = sizes_of(model) if found else None
        modified = False
        for node in found:
            x = None if sizes is None else sizes.of(node.inputs[0])
            modified = (x is not None and _reaches_all(node, x) and bypass(node)) or modified
        return ir.passes.PassResult(model, modified=modified)


def _is_given(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _from_the_start(node: ir.Node) -> bool:
    """Whether all that it says is constant, and leaves nothing out before the end."""
    if node.inputs[0] is None or any(_is_given(node, i) and graph.integers(node, i) is None for i in (3, 4)):
        return False
    starts, ends, steps = (graph.integers(node, index) for index in (1, 2, 4))
    return starts is not None and ends is not None and not any(starts) and all(step == 1 for step in steps or ())


def _reaches_all(node: ir.Node, x: Dims) -> bool:
    ends = graph.integers(node, 2) or []
    axes = graph.integers(node, 3) or list(range(len(ends)))
    if len(axes) != len(ends) or any(not -len(x) <= axis < len(x) for axis in axes):
        return False
    return all(_reaches(end, axis % len(x), x) for end, axis in zip(ends, axes, strict=True))


def _reaches(end: int, axis: int, x: Dims) -> bool:
    size = x[axis]
    if isinstance(size, int):
        return end >= size
    others = math.prod(dim for place, dim in enumerate(x) if place != axis and isinstance(dim, int))
    return end >= _END or end * others >= _BEYOND_MEMORY

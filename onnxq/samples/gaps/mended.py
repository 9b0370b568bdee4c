"""Inputs of a model whose NaN or infinities it looks for or bounds itself, to put something else in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.model import graph

#: What numbers go through as they are.
_THROUGH = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
#: What asks for infinities, or bounds them, or is bounded by them.
_BOUNDED = ("IsInf", "Clip", "Min", "Max")


def mended_inputs(model: ir.Model) -> dict[str, set[str]]:
    """By input, the kinds (`quality.gaps.KINDS`) that an operator behind it is there for."""
    found = defaultdict[str, set[str]](set)
    for given in model.graph.inputs:
        for node in _readers(given):
            if graph.is_op(node, "IsNaN") or (graph.is_op(node, "Equal") and node.inputs[0] is node.inputs[1]):
                found[given.name or ""].add("NaN")
            elif graph.is_op(node, *_BOUNDED):
                found[given.name or ""].add("infinity")
    return dict(found)


def _readers(given: ir.Value) -> Iterator[ir.Node]:
    """What reads these numbers, each once."""
    seen, left = {given}, [given]
    while left:
        for node in left.pop().consumers():
            yield node
            if graph.is_op(node, *_THROUGH):
                left += [value for value in node.outputs if value not in seen]
                seen.update(node.outputs)

"""The factor of a Gemm in its weight: codes that learn are then codes of what the kernel multiplies by."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import renew


def fold_alpha(model: ir.Model, nodes: Container[str]) -> ir.Model:
    """A copy of `model`, which computes the same, in which the Gemms of these names have an alpha of 1.

    A weight that somebody else reads as well stays, and the Gemm has one of its own. Without a Gemm to change it is
    `model` itself.
    """
    if not any(_has_alpha(node) and node.name in nodes for node in graph.nodes(model)):
        return model
    made = model.clone()
    names = Names(made)
    for node in graph.nodes(made):
        if _has_alpha(node) and node.name in nodes:
            _fold(node, names)
    return made


def _has_alpha(node: ir.Node) -> bool:
    is_product = graph.is_op(node, "Gemm") and graph.constant(node.inputs[1]) is not None
    return is_product and graph.attribute_float(node, "alpha", 1.0) != 1.0


def _fold(node: ir.Node, names: Names) -> None:
    tensor = graph.constant(node.inputs[1])
    assert tensor is not None
    renew(node, 1, graph.scaled(tensor, graph.attribute_float(node, "alpha", 1.0)), "_alpha", names)
    del node.attributes["alpha"]

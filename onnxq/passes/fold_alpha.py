"""The factor of a Gemm in its weight: codes that learn are then codes of what the kernel multiplies by."""

from __future__ import annotations

from collections.abc import Container, Sequence

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import renew


def fold_alpha(model: ir.Model, nodes: Container[str]) -> ir.Model:
    """A copy of `model`, which computes the same, in which the Gemms of these names have an alpha of 1.

    A weight that somebody else reads as well stays, and those of one alpha have one of their own. Without a Gemm to
    change it is `model` itself.
    """
    if not any(_has_alpha(node) and node.name in nodes for node in graph.nodes(model)):
        return model
    made = model.clone()
    names, factors = Names(made), dict[ir.Value, dict[float, list[ir.Node]]]()
    for node in graph.nodes(made):
        if _has_alpha(node) and node.name in nodes:
            assert node.inputs[1] is not None
            factors.setdefault(node.inputs[1], {}).setdefault(_alpha(node), []).append(node)
    for weight, readers in factors.items():
        for alpha, several in readers.items():
            _fold(weight, alpha, several, names)
    return made


def _alpha(node: ir.Node) -> float:
    return graph.attribute_float(node, "alpha", 1.0)


def _has_alpha(node: ir.Node) -> bool:
    return graph.is_op(node, "Gemm") and graph.constant(node.inputs[1]) is not None and _alpha(node) != 1.0


def _fold(weight: ir.Value, alpha: float, readers: Sequence[ir.Node], names: Names) -> None:
    tensor = graph.constant(weight)
    assert tensor is not None
    renew(weight, [(node, 1) for node in readers], graph.scaled(tensor, alpha), "_alpha", names)
    for node in readers:
        del node.attributes["alpha"]

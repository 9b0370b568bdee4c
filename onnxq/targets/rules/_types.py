"""Shared by the rules: types of values, and domains of operators, that a runtime does not have."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxq.targets.rules import Found, View

TREES = "ai.onnx.ml"
#: What becomes of a node whose type an execution provider of onnxruntime does not have.
ELSEWHERE = "the processor computes it"
#: What such a provider has no kernels for.
ON_PROCESSOR = dict.fromkeys((ir.DataType.STRING, ir.DataType.DOUBLE), (ELSEWHERE, False))
#: In words.
_WORDS = {ir.DataType.STRING: "strings", ir.DataType.DOUBLE: "float64"}


def lacks_types(view: View, runtime: str, types: Mapping[ir.DataType, tuple[str, bool]]) -> Found:
    """Nodes that read or make values of types that a runtime does not have.

    Args:
        types: what becomes of those, and whether the runtime refuses them.
    """
    for node in view.nodes:
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        found = {view.types.of(value).dtype for value in values}
        for type, (becomes, refuses) in types.items():
            if type in found:
                yield node, f"{runtime} has no {_WORDS[type]}: {becomes}", refuses


def lacks_trees(view: View, runtime: str, becomes: str, *, refuses: bool) -> Found:
    """Nodes of the domain of trees, encoders and the like, of which a runtime has none."""
    for node in view.nodes:
        if node.domain == TREES:
            yield node, f"{runtime} has no {TREES} {node.op_type}: {becomes}", refuses

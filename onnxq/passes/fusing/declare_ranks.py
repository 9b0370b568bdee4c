"""Bodies of Scan say of how many dimensions what they make is."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types


class DeclareRanks(ir.passes.InPlacePass):
    """onnxruntime runs a Scan only where it knows that of all outputs of its body. Operators of the onnxq domain cannot
    tell it where a size has neither number nor name, so that an output that is made of theirs declares it.

    Args:
        types: of the float model's values, by names that outputs of bodies have still.
    """

    def __init__(self, types: Callable[[], Types]) -> None:
        super().__init__()
        self._types = types

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        scans = [node for node in graph.nodes(model) if graph.is_op(node, "Scan") and "body" in node.attributes]
        unknown = [out for node in scans for out in node.attributes["body"].as_graph().outputs if out.shape is None]
        if not unknown:
            return ir.passes.PassResult(model, modified=False)
        types, modified = self._types(), False
        for out in unknown:
            known = types.of(out)
            if known.rank is not None and known.dtype is not None:
                out.type = ir.TensorType(out.dtype or known.dtype)  # without which a shape is not written
                out.shape, modified = ir.Shape([None] * known.rank), True
        return ir.passes.PassResult(model, modified=modified)

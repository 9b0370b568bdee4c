"""What onnxruntime must not join with the codes in front of it: a Max of one input stands between them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.runtime import known


@dataclass(frozen=True)
class SetApart(ir.passes.InPlacePass):
    """Nodes that read what was codes before, as it is or moved, get a Max of one input in front, which computes nothing
    and which no rule of onnxruntime's optimizer takes out:

    1. An AveragePool that rounds sizes up (`ceil_mode`). Between codes onnxruntime makes one of codes of it, which
       divides by whole windows where these stand out behind the image, as far as pads count; and of a Pad in front it
       makes pads that count (1.31, 1.32). Of one with dilations it makes one of codes that has none, and refuses it.
    2. What moves codes (`known.CODES_MOVE_PAST`) and is read in a body of If, Loop or Scan. The rule that moves
       DequantizeLinear behind it looks for this reader among the inputs of that node, and the process ends (1.32).

    Attributes:
        pools: whether onnxruntime will run the model; else only what would end a process is set apart.
    """

    pools: bool = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in graph.nodes(model) if self._is_wrong(node) and _was_codes(node)]
        names = Names(model) if found else None
        for node in found:
            assert names is not None
            apart = names.fresh(f"{node.name}_apart")
            node.replace_input_with(0, graph.add_node(node, "Max", [node.inputs[0]], apart, apart))
        return ir.passes.PassResult(model, modified=bool(found))

    def _is_wrong(self, node: ir.Node) -> bool:
        if graph.is_op(node, "AveragePool"):
            return self.pools and known.is_pool_of_floats(node)
        moves = graph.is_op(node, *known.CODES_MOVE_PAST)
        return moves and any(use.node.graph is not node.graph for out in node.outputs for use in out.uses())


def _was_codes(node: ir.Node) -> bool:
    """Whether it reads what was codes before, behind nothing but a Pad and what moves them."""
    before = _source(node)
    while graph.is_op(before, "Pad", *known.CODES_MOVE_PAST):
        assert before is not None
        before = _source(before)
    return before is not None and (before.domain == own_ops.DOMAIN or graph.is_op(before, "DequantizeLinear"))


def _source(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None

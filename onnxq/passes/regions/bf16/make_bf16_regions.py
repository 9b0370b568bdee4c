"""Islands of float operators around convolutions with weights in bfloat16, as nodes of the onnxq domain."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types
from onnxq.passes import Pass
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.regions.bf16.groups import entry, groups_of
from onnxq.passes.regions.body import insert_bf16
from onnxq.passes.regions.islands import find_islands, island_of
from onnxq.passes.regions.make_regions import MOST_NODES, scanned


def _add_dequantized(types: Types, model: ir.Model) -> None:
    """Also of what int8 operators beside these make float again, whose name may have gone to it."""
    for node in graph.nodes(model):
        codes = node.inputs[0] if graph.is_op(node, "DequantizeLinear") else None
        quantize = graph.producer(codes)
        if graph.is_op(quantize, "QuantizeLinear") and quantize is not None and quantize.inputs[0] is not None:
            old, new = quantize.inputs[0].name or "", node.outputs[0].name or ""
            for name, other in ((old, new), (new, old)):
                if name not in types and other in types:
                    types[name] = types[other]


class MakeBf16Regions(Pass):
    """Give each island of float operators one node that computes in bfloat16, the largest islands first.

    What the island was is the body of the node's function: in float32, so that numbers agree as far as bfloat16 does.

    Args:
        types: types and shapes of values, by the names that they have in the model.
        allowed: names of convolutions that may compute in bfloat16; weights of small ones may be in float32.
        counting: names of nodes that must not, as bfloat16 does not hold what they count.
    """

    def __init__(self, types: Types, allowed: frozenset[str], counting: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.types, self.allowed, self.counting = Types(types), allowed, counting

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names = Names(model)
        made, left_out = 0, scanned(model)
        _add_dequantized(self.types, model)
        for subgraph in [each for each in graph.graphs(model) if each not in left_out]:
            subgraph.sort()
            while len(subgraph) <= MOST_NODES:
                found = find_islands(subgraph, groups_of(subgraph, self.types, self.allowed, self.counting))
                if not found:
                    break
                for groups in found:
                    insert_bf16(model, island_of(groups, entry), names, self.types)
                RemoveUnused()(model)
                subgraph.sort()
                made += len(found)
        return ir.passes.PassResult(model, modified=made > 0)

"""Islands of int8 operators, made by `insert_qdq`, as nodes of the onnxq domain."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.passes import Pass
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.regions.body import insert
from onnxq.passes.regions.groups import Ranks, groups_of, ranks_of
from onnxq.passes.regions.islands import find_island

#: Nodes of a graph above which what waits for what takes too much memory to know.
MOST_NODES = 20000


def scanned(model: ir.Model) -> set[ir.Graph]:
    """Bodies of Scan, and what is inside them: its outputs must have shapes before it runs, and a region tells none."""
    bodies = [node.attributes["body"].as_graph() for node in graph.nodes(model) if graph.is_op(node, "Scan")]
    return {each for body in bodies for each in (body, *body.subgraphs())}


class MakeRegions(Pass):
    """Give each island of int8 operators one node, the largest islands first.

    What the island was is the body of the node's function, so that runtimes without the library compute the same.

    Args:
        ranks: number of dimensions of the values that are quantized, by the names that they had in float.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = dict(ranks)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names = Names(model)
        made, left_out = 0, scanned(model)
        for subgraph in [each for each in graph.graphs(model) if each not in left_out]:
            subgraph.sort()
            self.ranks |= ranks_of(subgraph, self.ranks)
            while len(subgraph) <= MOST_NODES:
                island = find_island(subgraph, groups_of(subgraph, self.ranks))
                if island is None:
                    break
                insert(model, island, names, self.ranks)
                RemoveUnused()(model)
                subgraph.sort()
                made += 1
        return ir.passes.PassResult(model, modified=made > 0)

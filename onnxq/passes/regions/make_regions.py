"""Islands of int8 operators, made by `insert_qdq`, as nodes of the onnxq domain."""

from __future__ import annotations

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types
from onnxq.passes import Pass
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.regions.body import insert
from onnxq.passes.regions.group import Group
from onnxq.passes.regions.groups import Ranks, groups_of, ranks_of
from onnxq.passes.regions.islands import Island, find_islands, island_of
from onnxq.passes.regions.tables import tables_of

#: Nodes of a graph above which what waits for what takes too much memory to know.
MOST_NODES = 20000


def scanned(model: ir.Model) -> set[ir.Graph]:
    """Bodies of Scan, and what is inside them: its outputs must have shapes before it runs, and a region tells none."""
    bodies = [body for node in graph.nodes(model) if graph.is_op(node, "Scan") for body in graph.bodies(node)]
    return {each for body in bodies for each in (body, *body.subgraphs())}


def _remove(subgraph: ir.Graph, island: Island) -> None:
    """What a region stands for now, and what quantized for it alone, so that no other island takes them for readers."""
    for group in reversed(island.groups):
        for node in reversed((*group.nodes, *group.dequantizers)):
            if node.graph is subgraph and not any(out.uses() or out.is_graph_output() for out in node.outputs):
                subgraph.remove(node, safe=True)


class MakeRegions(Pass):
    """Give each island of int8 operators one node, the largest islands first.

    What the island was is the body of the node's function, so that runtimes without the library compute the same.

    Args:
        ranks: number of dimensions of the values that are quantized, by the names that they had in float.
        types: of all values, as far as they are known.
    """

    def __init__(self, ranks: Ranks, types: Types) -> None:
        super().__init__()
        known = {name: each.rank for name, each in types.items() if each.rank is not None}
        self.ranks, self.types = {**known, **ranks}, types

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names = Names(model)
        made, left_out = 0, scanned(model)
        RemoveUnused()(model)  # a region that nobody reads would leave its function
        for subgraph in [each for each in graph.graphs(model) if each not in left_out]:
            subgraph.sort()
            self.ranks |= ranks_of(subgraph, self.ranks)
            while len(subgraph) <= MOST_NODES:
                found = find_islands(subgraph, groups_of(subgraph, self.ranks, self.types))
                for groups in found:
                    island = island_of(groups)
                    insert(model, island, names, self.ranks, self._tables(model, island))
                    _remove(subgraph, island)
                made += len(found)
                if not found:
                    break
                RemoveUnused()(model)
                subgraph.sort()
        return ir.passes.PassResult(model, modified=made > 0)

    def _tables(self, model: ir.Model, island: Island) -> dict[Group, NDArray]:
        functions = [group for group in island.groups if group.chain is not None]
        return tables_of(functions, graph.opset(model)) if functions else {}

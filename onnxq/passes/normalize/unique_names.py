"""Every node and value gets a name of its own, across all graphs, so that plans and ranges can speak of them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph


class UniqueNames(ir.passes.InPlacePass):
    """Name what has no name and rename what shares one.

    1. Inputs and outputs of the main graph keep their names: they are the model's interface.
    2. A value of a subgraph (If, Loop, Scan) may lawfully share its name with one of a sibling: it is renamed.
    3. A node without a name takes that of its first output, which is often the more telling one.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        interface = [*model.graph.inputs, *model.graph.outputs]
        taken = {value.name or "" for value in interface}
        seen = {id(value) for value in interface}
        renamed = 0
        for each in graph.graphs(model):
            outputs = [output for node in each for output in node.outputs]
            for value in [*each.inputs, *list(each.initializers.values()), *outputs]:
                if id(value) in seen or (not value.name and not value.uses() and not value.is_graph_output()):
                    continue
                seen.add(id(value))
                name = _fresh(value.name or "value", taken)
                if name != value.name:
                    value.name = name
                    renamed += 1
        nodes: set[str] = set()
        for node in graph.nodes(model):
            name = _fresh(node.name or _first_output(node) or node.op_type, nodes)
            if name != node.name:
                node.name = name
                renamed += 1
        return ir.passes.PassResult(model, modified=renamed > 0)


def _first_output(node: ir.Node) -> str | None:
    return next((output.name for output in node.outputs if output.name), None)


def _fresh(name: str, taken: set[str]) -> str:
    base, number = name, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name

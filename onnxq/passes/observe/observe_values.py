"""Values are summed up where they are computed: each gets a node that reads it and has no output."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names

DOMAIN, OP = "onnxq", "Observe"


class ObserveValues(ir.passes.InPlacePass):
    """Add an `Observe` node (custom_ops/cpu/observe.cc) behind each named value, in subgraphs too.

    Args:
        numbers: by value name, the number of the summary that the value is added to; 0: to none.

    Names that are no value of the main graph or of a subgraph are left in `missing`.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.missing: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        fresh = Names(model)
        owners: dict[str, tuple[ir.Graph, ir.Value]] = {}
        for each in graph.graphs(model):
            for value in (*each.inputs, *(output for node in each for output in node.outputs)):
                owners[value.name or ""] = (each, value)
        self.missing = [name for name in self.numbers if name not in owners]
        for name, number in self.numbers.items():
            if name in owners:
                owner, value = owners[name]
                node = ir.node(
                    OP, [value], {"summary": number}, domain=DOMAIN, num_outputs=0, name=fresh.fresh(f"{name}_observe")
                )
                owner.append(node)
        model.graph.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, modified=len(self.missing) < len(self.numbers))


class ObserveBeforeReorder(ir.passes.InPlacePass):
    """In a model that onnxruntime has optimized and written: observe blocked activations as they lie in memory.

    Its convolutions pass activations on in blocks of 8 or 16 channels and convert them for every other reader, which
    takes longer than observing. A summary does not depend on the order of the numbers (save the last bits of sums), so
    `Observe` may read the blocks, unless channels that fill up the last one would be taken for numbers.
    """

    #: Blocks are of so many channels at most, and of a power of two.
    BLOCK = 16

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if node.op_type != "ReorderOutput" or node.attributes["channels"].as_int() % self.BLOCK:
                continue
            users = [user for user, _ in node.outputs[0].uses()]
            observers = [user for user in users if user.op_type == OP and user.domain == DOMAIN]
            for user in observers:
                user.replace_input_with(0, node.inputs[0])
                modified = True
            if len(observers) == len(users) and not node.outputs[0].is_graph_output():
                model.graph.remove(node, safe=True)
        return ir.passes.PassResult(model, modified)

"""A product of a file as a model of its own, and back in its place: all else of the file stays as it lies there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names


@dataclass(frozen=True)
class Part:
    """What a product is in a file's model.

    Attributes:
        node: that multiplies.
        given: what it reads that is no constant, each once.
        nodes: those that make its weight of constants, and behind them itself.
        constants: what these read.
    """

    node: ir.Node
    given: list[ir.Value]
    nodes: list[ir.Node]
    constants: list[ir.Value]

    @classmethod
    def of(cls, node: ir.Node) -> Part:
        part = cls(node, [], [], [])
        part._add(node)
        return part

    def _add(self, node: ir.Node) -> None:
        for value in node.inputs:
            if value is None or value in self.given or value in self.constants:
                continue
            producer = value.producer()
            if graph.constant(value) is not None:
                self.constants.append(value)
            elif not graph.is_of_constants(value) or producer is None:
                self.given.append(value)
            elif producer not in self.nodes:
                self._add(producer)
        self.nodes.append(node)

    def model(self, whole: ir.Model, dtype: ir.DataType) -> ir.Model:
        """It as a model of its own, which has the functions of `whole`.

        Args:
            dtype: in which the product computes.
        """
        inputs = [ir.Value(name=value.name, shape=value.shape, type=ir.TensorType(dtype)) for value in self.given]
        values = dict(zip(self.given, inputs, strict=True))
        for value in self.constants:
            values[value] = ir.Value(name=value.name, shape=value.shape, type=value.type, const_value=value.const_value)
            values[value].meta.update(value.meta)
        nodes = list(_copies(self.nodes, values))
        made = ir.Graph(
            inputs,
            [values[value] for value in self.node.outputs if value.name],
            nodes=nodes,
            initializers=[values[value] for value in self.constants],
            opset_imports=dict(whole.opset_imports),
            name="product",
        )
        functions = list(whole.functions.values())
        return ir.Model(made, ir_version=whole.ir_version, functions=functions).clone()

    def replace(self, whole: ir.Model, made: ir.Model, names: Names) -> None:
        """Let the nodes of `made`, which was `model` once, compute what the product did.

        Constants that it still has are those of the file; what only the product read goes.
        """
        owner, name = self.node.graph, self.node.name
        assert isinstance(owner, ir.Graph)
        values = dict(zip(made.graph.inputs, self.given, strict=True))
        known = {id(value.const_value): value for value in self.constants}
        for value in list(made.graph.initializers.values()):
            tensor = value.const_value
            assert tensor is not None
            if value.uses():
                same = known.get(id(tensor))
                values[value] = same or graph.add_constant(owner, names.fresh(value.name or ""), tensor)
        self.node.name = names.fresh(f"{name}_before")
        for node in _copies(made.graph, values):
            node.name = name if node.name == name else names.fresh(node.name or "")
            for output in node.outputs:
                output.name = names.fresh(output.name or "") if output.name else ""
            self.node.prepend(node)
        (y,) = [value for value in self.node.outputs if value.name]
        graph.replace_value(y, values[made.graph.outputs[0]])
        self._remove()
        for domain, version in made.opset_imports.items():
            whole.opset_imports.setdefault(domain, version)
        for key, function in made.functions.items():
            whole.functions.setdefault(key, function)
        whole.ir_version = max(whole.ir_version, made.ir_version)

    def _remove(self) -> None:
        for node in reversed(self.nodes):
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                assert isinstance(node.graph, ir.Graph)
                node.graph.remove(node, safe=True)
        for value in self.constants:
            if not value.uses() and not value.is_graph_output() and value.graph is not None:
                del value.graph.initializers[value.name or ""]


def _copies(nodes: Iterable[ir.Node], values: dict[ir.Value, ir.Value]) -> Iterable[ir.Node]:
    """Copies that read and make `values`, to which what they make is added."""
    for node in nodes:
        made = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else values[value] for value in node.inputs],
            list(node.attributes.values()),
            overload=node.overload,
            num_outputs=len(node.outputs),
            name=node.name,
            metadata_props=dict(node.metadata_props),
        )
        for old, new in zip(node.outputs, made.outputs, strict=True):
            new.name, new.type, new.shape = old.name, old.type, old.shape
            values[old] = new
        yield made

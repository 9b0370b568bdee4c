"""One island as a node with its own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.passes.regions.groups import Group, Ranks, is_int8
from onnxq.passes.regions.islands import Island

#: The first line of attribute `steps`: its version.
FIRST_LINE = "region 1"


@dataclass
class _Writer:
    """Copies an island into a function, and says it in steps."""

    opset: int
    #: Of groups that are functions of one code.
    tables: dict[Group, ir.Value]
    lines: list[str] = field(default_factory=lambda: [FIRST_LINE])
    #: What the node reads and makes, in the graph around it.
    inputs: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    #: By value of the graph, the one in the function.
    copies: dict[ir.Value, ir.Value] = field(default_factory=dict)
    formal: list[ir.Value] = field(default_factory=list)
    made: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    #: By QuantizeLinear, the number of the step that makes its codes.
    steps: dict[ir.Node, int] = field(default_factory=dict)

    def input(self, value: ir.Value) -> int:
        """The number of an input of the node."""
        if value not in self.inputs:
            self.inputs.append(value)
            self.copies[value] = ir.Value(name=f"in_{len(self.formal)}")
            self.formal.append(self.copies[value])
        return self.inputs.index(value)

    def copy(self, node: ir.Node) -> None:
        """`node` in the function, unless it is there already."""
        if node.outputs[0] in self.copies:
            return
        read = []
        for value in node.inputs:
            if value is not None and value not in self.copies:
                self.input(value)
            read.append(None if value is None else self.copies[value])
        attributes = [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()]
        copy = ir.node(
            node.op_type, read, domain=node.domain, name=f"n_{len(self.nodes)}", num_outputs=len(node.outputs)
        )
        for attribute in attributes:
            copy.attributes[attribute.name] = attribute
        for number, (old, new) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
            new.name = f"v_{len(self.nodes)}_{number}" if old.name else ""
            self.copies[old] = new
        self.nodes.append(copy)

    def say(self, does: str, **words: int | list[int]) -> None:
        """A step."""
        said = [f"{name}={_spelt(value)}" for name, value in words.items()]
        self.lines.append(" ".join([does, *said]))

    def group(self, group: Group) -> None:
        """A group's nodes, and its step."""
        for node in group.operands:
            self.copy(node)
        words: dict[str, int | list[int]] = {}
        if group.sources:
            words["x"] = [self.steps[quantize] for quantize in group.sources]
        for node in group.nodes:
            self.copy(node)
        if group in self.tables:
            words["table"] = self.input(self.tables[group])
        for name, value in group.words.items():
            if isinstance(value, ir.Value):
                words[name] = self.input(value)
            elif value is not None:
                words[name] = value
        if group.makes_codes:
            self.steps[group.last] = len(self.lines) - 1
        else:
            words["out"] = self.output(group.last.outputs[0], self.copies[group.last.outputs[0]])
        self.say(group.does, **words)

    def output(self, value: ir.Value, made: ir.Value) -> int:
        """The number of an output of the node, which is this value of the function."""
        self.outputs.append(value)
        made.name = f"out_{len(self.made)}"
        self.made.append(made)
        return len(self.made) - 1


def _spelt(value: int | list[int]) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(int(value))


def insert(model: ir.Model, island: Island, names: Names, ranks: Ranks, tables: Mapping[Group, NDArray]) -> ir.Node:
    """Replace what others read of an island by the outputs of one new node, whose function goes to `model`."""
    last = island.groups[-1].last
    owner = last.graph
    assert isinstance(owner, ir.Graph)
    constants = {
        group: graph.add_constant(owner, names.fresh("table"), ir.tensor(tables[group]))
        for group in island.groups
        if group.chain is not None
    }
    writer = _Writer(graph.opset(model), constants)
    inside = island.nodes
    for group in island.groups:
        writer.group(group)
    for group in island.groups:
        for dequantize in group.dequantizers if group.does != "quantize" else ():
            if _is_read(dequantize.outputs[0], inside):
                writer.copy(dequantize)
                out = writer.output(dequantize.outputs[0], writer.copies[dequantize.outputs[0]])
                writer.say("dequantize", x=[writer.steps[group.last]], out=out)
    word = names.fresh("region")
    node = ir.node(
        own_ops.REGION,
        writer.inputs,
        {"steps": "\n".join(writer.lines)},
        domain=own_ops.DOMAIN,
        overload=word,
        name=word,
        num_outputs=len(writer.outputs),
    )
    owner.insert_after(last, node)
    for old, new in zip(writer.outputs, node.outputs, strict=True):
        quantize = _quantize_of(old)
        # By which onnxruntime knows what the node makes; only a product makes floats at once.
        rank = 2 if quantize is None else ranks.get(old.name or "")
        shape = old.shape if old.shape is not None or rank is None else ir.Shape([None] * rank)
        graph.replace_value(old, new)
        new.dtype, new.shape = ir.DataType.FLOAT, shape
        if quantize is not None:
            _quantize_again(new, quantize, names, lambda node: node not in inside and is_int8(node, ranks))
    _add_function(model, writer, word)
    return node


def _quantize_of(value: ir.Value) -> ir.Node | None:
    """The QuantizeLinear that a value was made float behind."""
    producer = value.producer()
    codes = producer.inputs[0] if producer is not None and producer.op_type == "DequantizeLinear" else None
    return None if codes is None else codes.producer()


def _quantize_again(value: ir.Value, quantize: ir.Node, names: Names, wants: Callable[[ir.Node], bool]) -> None:
    """Let operators outside that are int8, and read codes of the island, read them again: the same ones."""
    readers = [use for use in value.uses() if wants(use.node)]
    node = value.producer()
    if not readers or node is None:
        return
    again = [
        ir.node("QuantizeLinear", [value, *quantize.inputs[1:]], name=names.fresh(f"{value.name}_QuantizeLinear")),
    ]
    again[0].outputs[0].name = names.fresh(f"{value.name}_quantized")
    inputs = [again[0].outputs[0], *quantize.inputs[1:]]
    again.append(ir.node("DequantizeLinear", inputs, name=names.fresh(f"{value.name}_DequantizeLinear")))
    again[1].outputs[0].name = names.fresh(f"{value.name}_dequantized")
    again[1].outputs[0].type, again[1].outputs[0].shape = value.type, value.shape
    node.append(again)
    for use in readers:
        use.node.replace_input_with(use.idx, again[1].outputs[0])


def _is_read(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _add_function(model: ir.Model, writer: _Writer, overload: str) -> None:
    inner = ir.Graph(writer.formal, writer.made, nodes=writer.nodes, opset_imports={"": writer.opset})
    steps = ir.Attr("steps", ir.AttributeType.STRING, None)
    function = ir.Function(own_ops.DOMAIN, own_ops.REGION, overload, graph=inner, attributes=[steps])
    model.opset_imports.setdefault(own_ops.DOMAIN, own_ops.VERSION)
    model.ir_version = max(model.ir_version or 0, own_ops.IR_VERSION)
    model.functions[function.identifier()] = function

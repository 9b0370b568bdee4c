"""One island as a node with its own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import CONSTANT
from onnxq.model.types import Types
from onnxq.passes.regions.group import FloatGroup, Group, Tensor
from onnxq.passes.regions.groups import Ranks, is_int8, rank_of
from onnxq.passes.regions.islands import ENTRIES, Island
from onnxq.passes.regions.step_names import name_steps
from onnxq.passes.regions.tables import line_of
from onnxq.planning import chains

#: By operator, the first line of attribute `steps`: its version.
FIRST_LINES = {own_ops.REGION: "region 1", own_ops.BF16_REGION: "bf16 region 1"}
#: Steps of one operator, whatever is fused into it.
OWN_KERNELS = ("conv", "conv_transpose", "gemm", "add", "sub", "mul", "affine", "instance_norm")


@dataclass
class _Writer:
    """Copies an island into a function, and says it in steps."""

    model: ir.Model
    names: Names
    #: The operator.
    op: str
    lines: list[str] = field(default_factory=list)
    #: What the node reads and makes, in the graph around it.
    inputs: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    #: By value of the graph, the one in the function.
    copies: dict[ir.Value, ir.Value] = field(default_factory=dict)
    formal: list[ir.Value] = field(default_factory=list)
    made: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    #: By tensor, the number of the step that makes it.
    steps: dict[Tensor, int] = field(default_factory=dict)
    constants: dict[bytes, ir.Value] = field(default_factory=dict)
    #: The same where its codes are made float32 again.
    floats: dict[ir.Node, int] = field(default_factory=dict)
    #: Of each step, for those who measure it.
    whose: list[str] = field(default_factory=list)

    def input(self, value: ir.Value) -> int:
        """The number of an input of the node."""
        if value not in self.inputs:
            self.inputs.append(value)
            self.copies[value] = ir.Value(name=f"in_{len(self.formal)}")
            self.formal.append(self.copies[value])
        return self.inputs.index(value)

    def constant(self, array: NDArray, owner: ir.Graph) -> int:
        """The number of an input that is this array."""
        key = array.tobytes()
        if key not in self.constants:
            self.constants[key] = graph.add_constant(owner, self.names.fresh("region_constant"), ir.tensor(array))
        return self.input(self.constants[key])

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

    def say(self, does: str, whose: str, **words: int | list[int]) -> None:
        """A step, and the name of what it computes."""
        self.whose.append(whose)
        said = [f"{name}={_spelt(value)}" for name, value in words.items()]
        self.lines.append(" ".join([does, *said]))

    @property
    def steps_said(self) -> str:
        return "\n".join([FIRST_LINES[self.op], *self.lines])

    def group(self, group: Group) -> None:
        """A group's nodes, and its step."""
        for node in group.operands:
            self.copy(node)
        words: dict[str, int | list[int]] = {}
        if group.sources:
            decodes = isinstance(group, FloatGroup) and group.decodes
            words["x"] = [self.decoded(source) if decodes else self.steps[source] for source in group.sources]
        for node in group.nodes:
            self.copy(node)
        for name, value in group.words.items():
            if isinstance(value, ir.Value):
                value.meta[CONSTANT] = True
                words[name] = self.input(value)
            elif isinstance(value, np.ndarray):
                words[name] = self.constant(value, _graph_of(group.last))
            elif value is not None:
                words[name] = value
        if group.makes_tensor:
            self.steps[group.made] = len(self.lines)
        else:
            words["out"] = self.output(group.last.outputs[0], self.copies[group.last.outputs[0]])
        self.say(group.does, _whose(group), **words)

    def decoded(self, source: Tensor) -> int:
        """The step that makes float32 of a tensor, which may be that already."""
        if isinstance(source, ir.Value):
            return self.steps[source]
        if source not in self.floats:
            self.floats[source] = len(self.lines)
            self.say("decode", f"{source.inputs[0].name}_DequantizeLinear", x=[self.steps[source]])  # type: ignore[union-attr]
        return self.floats[source]

    def output(self, value: ir.Value, made: ir.Value) -> int:
        """The number of an output of the node, which is this value of the function."""
        self.outputs.append(value)
        made.name = f"out_{len(self.made)}"
        self.made.append(made)
        return len(self.made) - 1


def _whose(group: Group) -> str:
    """The node of the plan that a group computes; of what makes tensors, the value."""
    entering = group.words.get("in")
    if isinstance(entering, ir.Value):
        return f"{entering.name}_{'QuantizeLinear' if group.makes_tensor and group.does == 'quantize' else 'read'}"
    if group.does == "attention":  # which is called after its Softmax
        return next(node.name or "" for node in group.nodes if node.op_type == "Softmax")
    nodes = [node for node in group.nodes if node.op_type != "QuantizeLinear"]
    is_chain = bool(nodes) and nodes[0].op_type in chains.FUNCTIONS | chains.ORDERS and group.does not in OWN_KERNELS
    return (nodes[-1 if is_chain or group.chain is not None else 0].name if nodes else group.last.name) or ""


def _spelt(value: int | list[int]) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(int(value))


def insert(model: ir.Model, island: Island, names: Names, ranks: Ranks, tables: Mapping[Group, NDArray]) -> ir.Node:
    """Replace what others read of an island by the outputs of one new node, whose function goes to `model`."""
    writer = _Writer(model, names, own_ops.REGION)
    inside = island.nodes
    read = {source for group in island.groups for source in group.sources}
    for group in island.groups:
        made = group if group.chain is None else _as_numbers(group, tables[group])
        writer.group(made if group.does != "gemm" else _as_floats(group, read))
    for group in island.groups:
        if isinstance(group, FloatGroup) and (group.does != "gemm" or group.made in read):
            value = group.made
            if isinstance(value, ir.Value) and _is_read(value, inside):
                out = writer.output(value, writer.copies[value])
                writer.say("write", f"{value.name}_write", x=[writer.steps[value]], out=out)
        for dequantize in group.dequantizers if group.does not in ENTRIES else ():
            if _is_read(dequantize.outputs[0], inside):
                writer.copy(dequantize)
                out = writer.output(dequantize.outputs[0], writer.copies[dequantize.outputs[0]])
                whose = f"{group.last.inputs[0].name}_DequantizeLinear"  # type: ignore[union-attr]
                writer.say("dequantize", whose, x=[writer.steps[group.made]], out=out)
    products = {group.last.outputs[0]: group.sources[0] for group in island.groups if group.does == "gemm"}
    of_products = {out: rank_of(source, ranks) for out, source in products.items()}
    node = _node(writer, island.groups[-1].last)
    for old, new in zip(writer.outputs, node.outputs, strict=True):
        quantize = _quantize_of(old)
        _replace(old, new, of_products.get(old, ranks.get(old.name or "")))
        if quantize is not None:
            _quantize_again(new, quantize, names, lambda node: node not in inside and is_int8(node, ranks))
    return node


def _as_floats(group: Group, read: set[Tensor]) -> Group:
    """A product that makes float32: for other steps, or for those outside alone."""
    if group.made in read:
        return replace(group, does="sums")
    return Group(group.does, group.operands, group.nodes, group.sources, group.words)


def _as_numbers(group: Group, table: NDArray) -> Group:
    """A function by its table; where it has one for each channel, as lines if it can be."""
    scale, zero = (graph.constant(value) for value in group.last.inputs[1:])
    assert scale is not None and zero is not None
    line = line_of(table, zero.numpy().item()) if table.ndim > 1 else None
    if line is None:
        return replace(group, words={"table": table, **group.words})
    bounds = [(word, code) for word, code, end in (("low", line.low, 0), ("high", line.high, 255)) if code != end]
    words = {word: np.asarray((code - zero.numpy().item()) * scale.numpy(), np.float32) for word, code in bounds}
    knee = {} if line.knee is None else {"knee": line.knee}
    numbers = {"weight": line.factor, "bias": line.start, **knee}
    return replace(group, does="affine", words={**numbers, **group.words, **words})


def insert_bf16(model: ir.Model, island: Island, names: Names, types: Types) -> ir.Node:
    """The same of an island of float operators."""
    writer = _Writer(model, names, own_ops.BF16_REGION)
    for group in island.groups:
        writer.group(group)
    for group in island.groups:
        value = group.made
        if isinstance(value, ir.Value) and group.does not in ENTRIES and _is_read(value, island.nodes):
            out = writer.output(value, writer.copies[value])
            writer.say("write", f"{value.name}_write", x=[writer.steps[value]], out=out)
    node = _node(writer, island.groups[-1].last)
    for old, new in zip(writer.outputs, node.outputs, strict=True):
        _replace(old, new, types.of(old).rank)
    return node


def _node(writer: _Writer, last: ir.Node) -> ir.Node:
    """The node that stands for what `writer` was told, behind the `last` one."""
    word = writer.names.fresh("region")
    attributes = {"steps": writer.steps_said}
    made = len(writer.outputs)
    node = ir.node(
        writer.op, writer.inputs, attributes, domain=own_ops.DOMAIN, overload=word, name=word, num_outputs=made
    )
    name_steps(node, writer.whose)
    _graph_of(last).insert_after(last, node)
    _add_function(writer, word)
    return node


def _replace(old: ir.Value, new: ir.Value, rank: int | None) -> None:
    # A rank, by which onnxruntime knows what the node makes; but for Attention, which takes unknown sizes for 0.
    shape = old.shape
    if shape is None and rank is not None and not any(graph.is_op(use.node, "Attention") for use in old.uses()):
        shape = ir.Shape([None] * rank)
    graph.replace_value(old, new)
    new.dtype, new.shape = ir.DataType.FLOAT, shape


def _graph_of(node: ir.Node) -> ir.Graph:
    owner = node.graph
    assert isinstance(owner, ir.Graph)
    return owner


def _quantize_of(value: ir.Value) -> ir.Node | None:
    """The QuantizeLinear that a value was made float behind."""
    producer = value.producer()
    codes = producer.inputs[0] if producer is not None and producer.op_type == "DequantizeLinear" else None
    return graph.producer(codes)


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


def _add_function(writer: _Writer, overload: str) -> None:
    model = writer.model
    inner = ir.Graph(writer.formal, writer.made, nodes=writer.nodes, opset_imports={"": graph.opset(model)})
    steps = ir.Attr("steps", ir.AttributeType.STRING, None)
    function = ir.Function(own_ops.DOMAIN, writer.op, overload, graph=inner, attributes=[steps])
    model.opset_imports.setdefault(own_ops.DOMAIN, own_ops.VERSION)
    model.ir_version = max(model.ir_version or 0, own_ops.IR_VERSION)
    model.functions[function.identifier()] = function

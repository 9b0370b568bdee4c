"""One floating-point type in the place of another, throughout a model whose interface stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import HALVES, ORIGIN, SAME, STORED_TYPE, TURNED, is_whole
from onnxq.model.types import Types, infer_types

#: Operators that make or take sequences or optionals.
_NOT_ON_TENSORS = (
    *("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceAt", "SequenceLength"),
    *("SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
)


class ChangeFloatType(ir.passes.InPlacePass):
    """Let every node that `converts` accepts compute in type `new` where it computed in `old`.

    1. Initializers are converted when they are read; one that is read in both types is kept in both.
    2. A Cast stands wherever a value crosses between the types: at inputs and outputs of the graph, and around nodes
       that are not converted. Subgraphs of If, Loop and Scan keep the type of their own inputs and outputs.
    3. Attributes that name a type (Cast's `to`, `dtype`) and tensors in attributes follow their node.
    4. Left as they are: nodes that make or take sequences, optionals or maps, and nodes whose type follows from none
       of their inputs and attributes (RandomNormal without a `dtype` is float32 by definition).
    """

    def __init__(
        self, old: ir.DataType, new: ir.DataType, converts: Callable[[ir.Node], bool] = lambda node: True
    ) -> None:
        super().__init__()
        self.old, self.new, self.converts = old, new, converts

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not _occurs(self.old, model):
            return ir.passes.PassResult(model, modified=False)
        converter = _Converter(self.old, self.new, infer_types(model, guess=True), Names(model))
        for each in graph.graphs(model):
            converter.convert(each, self.converts)
        return ir.passes.PassResult(model, modified=converter.changed > 0)


class _Converter:
    def __init__(self, old: ir.DataType, new: ir.DataType, types: Types, names: Names) -> None:
        self.old, self.new, self.types, self.names = old, new, types, names
        self.made: set[int] = set()  # ids of values that are in the new type now
        self.casts: dict[tuple[int, ir.DataType, int], ir.Value] = {}
        self.restored: dict[int, ir.Value] = {}
        self.changed = 0

    def convert(self, body: ir.Graph, converts: Callable[[ir.Node], bool]) -> None:
        for node in list(body):
            if self._can_change(node) and converts(node):
                self._convert_node(node, body)
            else:
                self._feed(node, body, self.old)
        for index, output in enumerate(body.outputs):
            if id(output) in self.made:
                if id(output) not in self.restored:
                    self.restored[id(output)] = self._restore(output, body)
                body.outputs[index] = self.restored[id(output)]

    def _can_change(self, node: ir.Node) -> bool:
        """Whether the node computes in the old type, and would compute in the new one if its inputs were of that."""
        if graph.has_body(node) or graph.is_op(node, *_NOT_ON_TENSORS):
            return False
        return any(self._has_old_type(v) for v in node.inputs if v is not None) or any(
            names_type(attribute, self.old) for attribute in node.attributes.values()
        )

    def _has_old_type(self, value: ir.Value) -> bool:
        if id(value) in self.made:
            return True
        tensor = graph.constant(value)
        dtype = tensor.dtype if tensor is not None else (value.dtype or self.types.of(value).dtype)
        return dtype == self.old and isinstance(value.type, ir.TensorType | None)

    def _convert_node(self, node: ir.Node, body: ir.Graph) -> None:
        self._feed(node, body, self.new)
        for name, attribute in list(node.attributes.items()):
            if not names_type(attribute, self.old):
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, converted(attribute.as_tensor(), self.new))
            else:
                node.attributes[name] = ir.AttrInt64(name, int(self.new))
        for output in node.outputs:
            if self._has_old_type(output):
                output.type = ir.TensorType(self.new)  # a new one: clones of a model share their types
                self.made.add(id(output))
        self.changed += 1

    def _feed(self, node: ir.Node, body: ir.Graph, wanted: ir.DataType) -> None:
        """Make all inputs of `node` that have to do with either type be in the wanted one."""
        for index, value in enumerate(node.inputs):
            if value is None or not self._has_old_type(value):
                continue
            is_new = id(value) in self.made
            if is_new != (wanted == self.new):
                node.replace_input_with(index, self._cast(value, node, wanted))

    def _cast(self, value: ir.Value, reader: ir.Node, wanted: ir.DataType) -> ir.Value:
        tensor, owner = graph.constant(value), value.graph
        # A constant is converted where it lies, once for all subgraphs that read it.
        key = (id(value), wanted, id(reader.graph if tensor is None else owner))
        if key in self.casts:
            return self.casts[key]
        if tensor is not None and isinstance(owner, ir.Graph):
            name = self.names.fresh(f"{value.name}_{wanted.name.lower()}")
            made = graph.add_constant(owner, name, converted(tensor, wanted))
            if tensor.dtype in HALVES:
                made.meta[STORED_TYPE] = tensor.dtype
            made.meta[SAME], made.meta[TURNED] = is_whole(value), bool(value.meta.get(TURNED))
            made.meta[ORIGIN] = value.meta.get(ORIGIN, value.name)
        else:
            name = self.names.fresh(f"{value.name}_{wanted.name.lower()}")
            made = graph.add_node(reader, "Cast", [value], name, name, {"to": int(wanted)})
            made.type = ir.TensorType(wanted)
        if wanted == self.new:
            self.made.add(id(made))
        self.casts[key] = made
        return made

    def _restore(self, output: ir.Value, body: ir.Graph) -> ir.Value:
        """An output of the old type in the place of one that is now of the new one."""
        name = output.name or ""
        output.name = self.names.fresh(f"{name}_{self.new.name.lower()}")
        node = ir.node("Cast", [output], attributes={"to": int(self.old)}, name=self.names.fresh(f"{name}_cast"))
        body.append(node)
        made = node.outputs[0]
        made.name, made.type, made.shape = name, ir.TensorType(self.old), output.shape
        return made


def _occurs(dtype: ir.DataType, model: ir.Model) -> bool:
    """Whether anything makes values of this type: a constant, an input or an attribute."""
    return any(
        any(value.dtype == dtype for value in (*each.inputs, *each.initializers.values()))
        or any(names_type(a, dtype) for node in each for a in node.attributes.values())
        for each in graph.graphs(model)
    )


def names_type(attribute: ir.Attr, dtype: ir.DataType) -> bool:
    """Whether this attribute makes its node's output of type `dtype`."""
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.name == "value" and attribute.as_tensor().dtype == dtype
    if attribute.type != ir.AttributeType.INT or attribute.is_ref():
        return False
    return attribute.name in ("to", "dtype", "output_datatype") and attribute.as_int() == dtype


def converted(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """`tensor` in another type, computed when read."""
    return graph.lazily(tensor, lambda w: w, dtype=dtype)

"""Small questions every part asks of an `onnx_ir` model, answered once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.encoding import lazy, memo
from onnxq.errors import BadModel

#: Element types a weight may have; everything quantizable is one of them.
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

MICROSOFT = "com.microsoft"

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def graphs(model: ir.Model) -> list[ir.Graph]:
    """The main graph, then the subgraphs of If, Loop and Scan, wherever they nest."""
    return list(_with_inner(model.graph))


def _with_inner(body: ir.Graph) -> Iterator[ir.Graph]:
    yield body
    for node in body:
        for inner in bodies(node):
            yield from _with_inner(inner)


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node outside local functions, in the order of execution."""
    return _nodes_of(model.graph)


def inside(node: ir.Node) -> Iterator[ir.Node]:
    """Every node of the subgraphs of an If, Loop or Scan, and of those in them."""
    for body in bodies(node):
        yield from _nodes_of(body)


def read_by(node: ir.Node) -> Iterator[ir.Value]:
    """Everything that a node reads, in its subgraphs too."""
    for each in (node, *inside(node)):
        yield from (value for value in each.inputs if value is not None)


def _nodes_of(body: ir.Graph) -> Iterator[ir.Node]:
    # Each pass asks for all of them: by the dictionary within attributes, and no generator for each node.
    for node in body:
        yield node
        for attribute in node.attributes.data.values():
            if attribute.type is _GRAPH:
                yield from _nodes_of(attribute.as_graph())
            elif attribute.type is _GRAPHS:
                for inner in attribute.as_graphs():
                    yield from _nodes_of(inner)


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer that nobody can override, or None."""
    if value is None or value.const_value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value


def integers(node: ir.Node, index: int) -> list[int] | None:
    """Elements of a constant input, in one dimension; None where it is not given, or not constant."""
    tensor = constant(node.inputs[index]) if index < len(node.inputs) else None
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]


def is_op(node: ir.Node | None, *op_types: str, domain: str = "") -> bool:
    """Whether `node` is one of these operators of `domain` ("" is the ONNX standard)."""
    return node is not None and node.op_type in op_types and node.domain == domain


def decoded(value: ir.Value | None) -> ir.Value | None:
    """The codes that a DequantizeLinear makes `value` of; None where none does."""
    maker = producer(value)
    return maker.inputs[0] if maker is not None and is_op(maker, "DequantizeLinear") else None


def producer(value: ir.Value | None) -> ir.Node | None:
    """The node that makes a value; None of inputs, initializers, and where there is no value."""
    return None if value is None else value.producer()


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The single node that reads `value`, if there is just one and `value` is not a graph output."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    return next(iter(uses)).node


def producer_beside(node: ir.Node) -> ir.Node | None:
    """The node of the same graph that makes its first input."""
    x = node.inputs[0] if node.inputs else None
    before = producer(x)
    return before if before is not None and before.graph is node.graph else None


def own_producer(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The node of `reader`'s graph that makes `value` and nothing else, for `reader` alone."""
    node = producer(value)
    if value is None or node is None or node.graph is not reader.graph or len(node.outputs) != 1:
        return None
    return node if only_consumer(value) is reader else None


def are_closed(inner: Collection[ir.Node], last: ir.Node) -> bool:
    """Whether nobody else reads what these nodes make, but for what `last` of them makes."""
    nodes = set(inner)
    made = (out for node in nodes if node is not last for out in node.outputs)
    return not any(out.is_graph_output() or any(use.node not in nodes for use in out.uses()) for out in made)


def added_vector(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add that alone reads what `node` makes, and the constant vector that it adds.

    Behind a MatMul, onnxruntime makes a float Gemm of the two: of matrices, and (1.31, 1.32) where it knows all sizes.
    """
    follower = only_consumer(node.outputs[0])
    if follower is None or not is_op(follower, "Add") or follower.graph is not node.graph:
        return None
    for value in follower.inputs:
        tensor = constant(value)
        if value is not None and tensor is not None and len(tensor.shape) == 1:
            return follower, value
    return None


def is_of_constants(value: ir.Value | None) -> bool:
    """Whether a value is a constant, or made of constants alone by some nodes, and so is one once a model is loaded."""
    pending, seen = [value], set[ir.Node]()
    while pending:
        each = pending.pop()
        if constant(each) is not None:
            continue
        node = producer(each)
        if node is None or has_body(node) or not any(node.inputs) or len(seen) > 64:
            return False
        if node not in seen:
            seen.add(node)
            pending += [read for read in node.inputs if read is not None]
    return True


def has_body(node: ir.Node) -> bool:
    """Whether `node` is an If, Loop or Scan."""
    return next(bodies(node), None) is not None


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The subgraphs of an If, Loop or Scan, without those in them."""
    for attribute in node.attributes.data.values():
        if attribute.type is _GRAPH:
            yield attribute.as_graph()
        elif attribute.type is _GRAPHS:
            yield from attribute.as_graphs()


def detach_bodies(node: ir.Node) -> None:
    """Of a node that goes: what its subgraphs read is not used by them any more."""
    for inner in inside(node):
        for i in range(len(inner.inputs)):
            inner.replace_input_with(i, None)


def attribute_int(node: ir.Node, name: str, default: int) -> int:
    """What a node says; of one in a function, what the call of the function will say is taken for the default."""
    found = node.attributes.get(name)
    return default if found is None or found.is_ref() else _of_type(node, found, ir.AttributeType.INT).as_int()


def attribute_float(node: ir.Node, name: str, default: float) -> float:
    found = node.attributes.get(name)
    return default if found is None or found.is_ref() else _of_type(node, found, ir.AttributeType.FLOAT).as_float()


def attribute_string(node: ir.Node, name: str, default: str) -> str:
    found = node.attributes.get(name)
    if found is None or found.is_ref():
        return default
    text = _of_type(node, found, ir.AttributeType.STRING).value
    if not isinstance(text, str):  # bytes: onnx-ir could not decode them
        raise BadModel(f"node '{node.name}' ({node.op_type}): attribute '{name}' is no text in UTF-8")
    return text


def _of_type(node: ir.Node, attribute: ir.Attr, kind: ir.AttributeType) -> ir.Attr:
    """Of operators that ONNX knows, load.py has looked at the types of attributes; not of those of other domains."""
    if attribute.type != kind:
        raise BadModel(f"node '{node.name}' ({node.op_type}): attribute '{attribute.name}' is not of type {kind.name}")
    return attribute


def opset(model: ir.Model) -> int:
    """Version of the standard operators the model is written in."""
    return model.opset_imports.get("", 1)


class Names:
    """Fresh names for nodes and values: never one the model already uses, in any of its graphs."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._numbers: dict[str, int] = {}  # by names that were asked for, the last one behind each

    @functools.cached_property  # most passes find nothing to do, and need none
    def _taken(self) -> set[str]:
        taken: set[str] = set()
        for graph in graphs(self._model):
            for value in (*graph.inputs, *graph.initializers.values()):
                taken.add(value.name or "")
            for node in graph:
                taken.add(node.name or "")
                taken.update(output.name or "" for output in node.outputs)
        return taken

    def fresh(self, name: str) -> str:
        """`name`, with a number behind it if that is taken."""
        base, number, taken = name, self._numbers.get(name, 1), self._taken
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        self._numbers[base] = number
        return name


def lazily(
    tensor: ir.TensorProtocol,
    function: Callable[[NDArray], NDArray],
    *,
    dtype: ir.DataType | None = None,
    shape: Sequence[int] | None = None,
    how: str | None = None,
) -> ir.LazyTensor:
    """`function(tensor)` as a tensor of its own, computed whenever somebody reads it.

    Args:
        dtype: type of the result; that of `tensor` if None. The function's result is converted to it.
        shape: shape of the result; that of `tensor` if None.
        how: a word for what `function` does: what was made of the result is found again for the next one of that word.
    """
    kind = tensor.dtype if dtype is None else dtype
    dims = tuple(tensor.shape.numpy()) if shape is None else tuple(shape)

    def evaluate() -> ir.TensorProtocol:
        result = np.asarray(function(tensor.numpy())).astype(kind.numpy(), copy=False)
        made = ir.tensor(np.asarray(result.reshape(dims), order="C"))
        del result
        lazy.release(tensor)
        return made

    made = ir.LazyTensor(evaluate, dtype=kind, shape=ir.Shape(dims), name=tensor.name)
    if how is not None:
        made.meta[memo.DERIVED] = (tensor, (how, kind, dims))
    return made


def scaled(tensor: ir.TensorProtocol, factor: float) -> ir.LazyTensor:
    """factor · tensor, computed when read."""
    return lazily(tensor, lambda w: w.astype(np.float32) * np.float32(factor), how=f"times {factor}")


def flattened(tensor: ir.TensorProtocol, shape: tuple[int, ...], *, is_turned: bool = False) -> ir.LazyTensor:
    """The numbers of a weight, or of the transpose of a matrix, in another shape; codes that it has so are kept."""
    if isinstance(tensor, lazy.FlatGivenTensor) and tensor.is_turned == is_turned and tensor.given().shape == shape:
        return tensor.flat(shape)
    if isinstance(tensor, lazy.GivenTensor) and is_turned and len(shape) == 2:
        return tensor.turned()
    if is_turned:
        return lazily(tensor, lambda w: w.T, shape=shape, how="rows of the transpose")
    return lazily(tensor, lambda w: w, shape=shape, how="rows")


def add_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new initializer of `graph` called `name`, which must be free."""
    tensor.name = name
    shape = tensor.shape
    assert isinstance(shape, ir.Shape)
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


Attributes = Mapping[str, int | float | str | list[int]]


def add_node(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    output: str,
    attributes: Attributes | None = None,
    domain: str = "",
    overload: str = "",
) -> ir.Value:
    """A new node with one output, placed in front of `before`; its output."""
    node = ir.node(op_type, inputs, attributes=attributes or {}, domain=domain, overload=overload, name=name)
    node.outputs[0].name = output
    before.prepend(node)
    return node.outputs[0]


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Everyone who read `old`, the caller of the model included, reads `new`, which takes over its name and type."""
    new.type, new.shape = old.type, old.shape
    name, old.name = old.name, None
    new.name = name
    old.replace_all_uses_with(new, replace_graph_outputs=True)

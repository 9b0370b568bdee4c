"""How much work a model makes, counted and not done: nodes once functions are inlined, and what is inferred of shapes.

Functions that each call the one before twice are twice as many with each of them. So is a shape that is joined with
itself again and again, and ONNX's inference makes all of it; and each Unsqueeze in a row makes a longer shape than the
one before.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx

from onnxq.errors import BadModel
from onnxq.files import limits
from onnxq.model.scopes import subgraphs

#: Domain, name and overload: what a call names a function by.
Key = tuple[str, str, str]


def key_of(each: onnx.FunctionProto | onnx.NodeProto) -> Key:
    """Of a function, or of the one that a node calls if there is one."""
    return each.domain, each.name if isinstance(each, onnx.FunctionProto) else each.op_type, each.overload


def require_few_nodes(proto: onnx.ModelProto, path: Path) -> None:
    """Count.

    Raises:
        BadModel: there would be too many nodes, or subgraphs in subgraphs, or a function calls itself.
    """
    functions = {key_of(function): function for function in proto.functions}
    sizes: dict[Key, tuple[int, int]] = {}
    for key in _callees_first(functions, path):
        sizes[key] = _size(functions[key].node, sizes)
    count, depth = _size(proto.graph.node, sizes)
    if count > limits.NODES:
        many = f"{count:,}" if count < 10**12 else "countless"
        raise BadModel(f"'{path}': it has {many} nodes once its functions are inlined, more than {limits.NODES:,}")
    if depth > limits.DEPTH:
        raise BadModel(f"'{path}': subgraphs and functions nest {depth} deep, more than {limits.DEPTH}")


def _size(nodes: Iterable[onnx.NodeProto], sizes: Mapping[Key, tuple[int, int]]) -> tuple[int, int]:
    """Nodes and depth of a graph, calls counted as what they become."""
    count = depth = 0
    for node in nodes:
        more, deeper = sizes.get(key_of(node), (1, 0))
        for body in subgraphs(node):
            inner, below = _size(body.node, sizes)
            more, deeper = more + inner, max(deeper, below + 1)
        count, depth = count + more, max(depth, deeper)
    return count, depth + 1


def _callees_first(functions: Mapping[Key, onnx.FunctionProto], path: Path) -> list[Key]:
    """The functions in an order in which each comes after those that it calls."""
    done: dict[Key, bool] = {}  # False: its callees are being visited
    order: list[Key] = []
    for root in functions:
        stack = [(root, False)]
        while stack:
            key, left = stack.pop()
            if left:
                done[key] = True
                order.append(key)
            elif key not in done:
                done[key] = False
                stack.append((key, True))
                called = {key_of(node) for node in _all_nodes(functions[key].node)} & functions.keys()
                if any(done.get(each) is False for each in called):
                    raise BadModel(f"'{path}': the function '{key[1]}' calls itself, perhaps through others")
                stack += [(each, False) for each in called if each not in done]
    return order


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from _all_nodes(body.node)


class _Size(NamedTuple):
    """At most, of a value: its dimensions; and its elements, if shapes may be computed of it, else 0."""

    rank: int
    elements: int = 0


#: Operators through which ONNX follows the elements of a shape, as many as went in.
_FOLLOWED = ("Add", "Sub", "Mul", "Div", "Mod", "Cast", "Identity", "Slice", "Where", "Min", "Max")


def require_short_shapes(proto: onnx.ModelProto, path: Path) -> None:
    """Add up, at most, what ONNX's shape inference makes; `require_few_nodes` was asked before.

    Raises:
        BadModel: it is more than any model needs.
    """
    shapes = _Shapes({key_of(function): function for function in proto.functions})
    shapes.graph(proto.graph, ChainMap(), ())
    if shapes.is_too_much:
        raise BadModel(
            f"'{path}': the shapes of its values have more than {limits.DIMENSIONS:,} dimensions together, or are "
            f"computed of more than {limits.SHAPE_ELEMENTS:,} numbers"
        )


class _Shapes:
    """Walks a model in the order of its nodes, calls of functions as what they become.

    Attributes:
        dimensions, elements, values: the sums so far, and of how many values.
    """

    def __init__(self, functions: Mapping[Key, onnx.FunctionProto]) -> None:
        self.functions = functions
        self.dimensions = self.elements = self.values = 0

    @property
    def is_too_much(self) -> bool:
        most = limits.DIMENSIONS + limits.DIMENSIONS_EACH * self.values
        return self.dimensions > most or self.elements > limits.SHAPE_ELEMENTS

    def graph(self, body: onnx.GraphProto, around: MutableMapping[str, _Size], given: Sequence[_Size]) -> list[_Size]:
        """Sizes of the outputs; `given`: of what the node around it reads, which its inputs may get."""
        known = ChainMap({}, around)
        most = max((size.rank for size in given), default=0)
        for value in body.input:
            known[value.name] = _Size(max(most, len(value.type.tensor_type.shape.dim)))
        for tensor in body.initializer:
            known[tensor.name] = _of_tensor(tensor)
        self.nodes(body.node, known)
        return [known.get(value.name, _Size(0)) for value in body.output]

    def nodes(self, nodes: Iterable[onnx.NodeProto], known: MutableMapping[str, _Size]) -> None:
        for node in nodes:
            if self.is_too_much:
                return
            inputs = [known.get(name, _Size(0)) for name in node.input]
            inner = [size for body in subgraphs(node) for size in self.graph(body, known, inputs)]
            function = self.functions.get(key_of(node))
            made = [_made(node, inputs, inner)] * len(node.output)
            if function is not None:
                own = dict(zip(function.input, inputs, strict=False))
                self.nodes(function.node, own)
                made = [own.get(name, _Size(0)) for name in function.output]
            for name, size in zip(node.output, made, strict=False):
                known[name] = size
                self.dimensions += size.rank
                self.elements += size.elements
                self.values += 1


def _of_tensor(tensor: onnx.TensorProto) -> _Size:
    is_vector = len(tensor.dims) < 2 and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return _Size(len(tensor.dims), tensor.dims[0] if is_vector and tensor.dims else int(is_vector))


#: What makes shapes of other lengths, of a node's first two inputs and the longest list of its attributes: (rank,
#: elements) by operator.
_ARRANGING: dict[str, Callable[[_Size, _Size, int], tuple[int, int]]] = {
    "Shape": lambda x, _, n: (1, x.rank),
    "Size": lambda x, _, n: (0, 1),
    "Unsqueeze": lambda x, axes, n: (x.rank + (axes.elements or n or 1), x.elements),
    "Squeeze": lambda x, axes, n: (max(0, x.rank - (axes.elements or n or 1)), x.elements),
    "Gather": lambda x, i, n: (max(0, x.rank + i.rank - 1), i.elements if x.elements else 0),
    "GatherND": lambda x, i, n: (x.rank + i.rank, 0),
    "OneHot": lambda x, _, n: (x.rank + 1, 0),
    "Reshape": lambda x, shape, n: (shape.elements or n, x.elements),
    "Expand": lambda x, shape, n: (max(x.rank, shape.elements), 0),
    "ConstantOfShape": lambda shape, _, n: (shape.elements, 0),
    "RandomNormal": lambda x, _, n: (n, 0),
    "RandomUniform": lambda x, _, n: (n, 0),
    "Flatten": lambda x, _, n: (2, 0),
    "Constant": lambda x, _, n: (1 if n else 0, max(1, n)),
}


def _made(node: onnx.NodeProto, inputs: Sequence[_Size], inner: Sequence[_Size]) -> _Size:
    """Of an operator's outputs.

    Args:
        inner: of the outputs of its subgraphs.
    """
    if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
        return _of_tensor(node.attribute[0].t)
    arranging = _ARRANGING.get(node.op_type)
    if arranging is not None:
        first, second = (*inputs, _Size(0), _Size(0))[:2]
        return _Size(*arranging(first, second, max((len(each.ints) for each in node.attribute), default=0)))
    rank = max((size.rank for size in inputs), default=0)
    if node.op_type == "Concat":
        return _Size(rank, sum(size.elements for size in inputs))
    if node.op_type == "Einsum":
        return _Size(max((len(each.s) for each in node.attribute), default=0))
    if inner:
        rank = max(rank, max(size.rank for size in inner) + (node.op_type != "If"))
    longest = max((size.elements for size in inputs), default=0) if node.op_type in _FOLLOWED else 0
    return _Size(rank, longest)

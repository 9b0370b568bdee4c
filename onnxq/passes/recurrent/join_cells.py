"""A step of an LSTM is one node again, where an exporter wrote it in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types, types_of
from onnxq.passes import Pass
from onnxq.recipe import KEEP, Recipe
from onnxq.schemes import weight_format

#: The oldest standard operators whose Squeeze and Unsqueeze read their axes.
OPSET = 13
#: ONNX's order of the gates of an LSTM: input, output, forget, cell.
_GATES = 4


@dataclass(frozen=True)
class _Product:
    """x · w, with w as [gates · H, K]."""

    node: ir.Node
    x: ir.Value
    w: ir.Value
    turned: bool

    @property
    def k(self) -> int:
        shape = self._shape
        return shape[0] if self.turned else shape[1]

    @property
    def n(self) -> int:
        shape = self._shape
        return shape[1] if self.turned else shape[0]

    @property
    def _shape(self) -> tuple[int, ...]:
        tensor = graph.constant(self.w)
        assert tensor is not None
        return tuple(tensor.shape.numpy())


@dataclass
class _Cell:
    """One step: c' = f · c + i · g and h' = o · tanh(c'), of gates that are parts of one sum.

    Attributes:
        order: of the parts of the sum, those of the gates i, o, f and g.
        products: of x and of h, in this order.
        biases: constant vectors of the sum.
        inner: what nobody needs any more.
    """

    c: ir.Value
    c_new: ir.Value
    h_new: ir.Value
    order: tuple[int, ...]
    products: list[_Product] = field(default_factory=list)
    biases: list[ir.Value] = field(default_factory=list)
    inner: list[ir.Node] = field(default_factory=list)

    @property
    def h_size(self) -> int:
        return self.products[0].n // _GATES


class JoinCells(Pass):
    """Make an LSTM of one step of the nodes that compute it.

    1. The gates are the four parts of a Split of the sum of two products by constants, one of them of as many inputs as
       a gate has numbers, and of constant vectors, in any order, MatMul or Gemm.
    2. Nobody else reads what lies between, but for both new states.
    3. All are matrices of float32: sequences and their numbers, of as many sequences.
    4. Both products are wanted in the same 8 bits, and so is an LSTM of the name of the first, which it has.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        cells: list[_Cell] = []
        if graph.opset(model) >= OPSET:
            types = types_of(model)
            found = [_cell(node, types) for node in graph.nodes(model) if graph.is_op(node, "Add")]
            cells = [cell for cell in found if cell is not None and self._is_wanted(cell)]
        maker = _Maker(Names(model))
        for cell in cells:
            maker.replace(cell)
        return ir.passes.PassResult(model, modified=bool(cells))

    def _is_wanted(self, cell: _Cell) -> bool:
        names = [(product.node.name or "", product.node.op_type) for product in cell.products]
        asked = {
            (self.recipe.scheme_for(*each), self.recipe.algorithm_for(*each), self.recipe.rank_for(*each))
            for each in (*names, (names[0][0], "LSTM"))
        }
        return len(asked) == 1 and all(is_of_8_bits(scheme) for scheme, _, _ in asked)


def is_of_8_bits(scheme: str) -> bool:
    """Whether a scheme's weights are those that kernels of recurrent layers read."""
    return scheme != KEEP and weight_format(scheme) == "int8"


def _cell(add: ir.Node, types: Types) -> _Cell | None:
    """The cell whose new c this Add makes."""
    c_new = add.outputs[0]
    readers = [use.node for use in c_new.uses() if graph.is_op(use.node, "Tanh")]
    last = graph.only_consumer(readers[0].outputs[0]) if len(readers) == 1 else None
    if last is None or not graph.is_op(last, "Mul") or len({node.graph for node in (add, readers[0], last)}) > 1:
        return None
    o = _other(last, readers[0].outputs[0])
    terms = [_inner(value, "Mul", add) for value in add.inputs]
    if o is None or None in terms:
        return None
    fresh = next((term for term in terms if term is not None and _gate(term, "Tanh") is not None), None)
    kept = next((term for term in terms if term is not fresh), None)
    g, f = (None if fresh is None else _gate(fresh, "Tanh")), (None if kept is None else _gate(kept, "Sigmoid"))
    if fresh is None or kept is None or g is None or f is None:
        return None
    i, c = _other(fresh, g.outputs[0]), _other(kept, f.outputs[0])
    gates = [_sigmoid(i, fresh), _sigmoid(o, last), f, g]
    if c is None or None in gates:
        return None
    inner = [node for node in (last, readers[0], add, fresh, kept, *gates) if node is not None]
    split, order = _parts([node for node in gates if node is not None])
    if split is None or any(node.graph is not add.graph for node in (*inner, split)):
        return None
    cell = _Cell(c, c_new, last.outputs[0], order, inner=[*inner, split])
    return cell if _reads_sum(cell, split, types) else None


def _reads_sum(cell: _Cell, split: ir.Node, types: Types) -> bool:
    """Whether the Split reads a sum of two products that make a cell; they become the cell's."""
    pending = [(split.inputs[0], split)]
    while pending:
        value, reader = pending.pop()
        node = graph.producer(value)
        if value is not None and graph.constant(value) is not None:
            cell.biases.append(value)
        elif node is None or node.graph is not split.graph or graph.only_consumer(node.outputs[0]) is not reader:
            return False
        elif graph.is_op(node, "Add"):
            cell.inner.append(node)
            pending += [(x, node) for x in node.inputs]
        else:
            product = _product(node, cell)
            if product is None:
                return False
            cell.products.append(product)
            cell.inner.append(node)
    if len(cell.products) != 2 or cell.products[0].n != cell.products[1].n or cell.products[0].n % _GATES:
        return False
    ways = [pair for pair in (cell.products, cell.products[::-1]) if pair[1].k == cell.h_size and pair[0].k * pair[1].k]
    if not ways or not all(_is_vector(bias, cell.products[0].n) for bias in cell.biases):
        return False
    cell.products = ways[0]
    return _are_sequences(cell, types)


def _are_sequences(cell: _Cell, types: Types) -> bool:
    """Whether x, h and c are matrices of as many rows: parts would repeat a single one for the others."""
    sizes = {value: types.of(value) for value in (cell.products[0].x, cell.products[1].x, cell.c)}
    shapes = [each.shape for each in sizes.values() if each.dtype is ir.DataType.FLOAT and each.shape is not None]
    if len(shapes) != len(sizes) or any(len(shape) != 2 for shape in shapes):
        return False
    rows = {shape[0] for shape in shapes}
    return len(rows) == 1 and None not in rows and types.of(cell.c).shape == (*rows, cell.h_size)


def _product(node: ir.Node, cell: _Cell) -> _Product | None:
    """A product by a constant matrix on the right; a Gemm's bias is one of the cell's."""
    x, w = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    tensor = graph.constant(w)
    if x is None or w is None or tensor is None or len(tensor.shape) != 2 or tensor.dtype is not ir.DataType.FLOAT:
        return None
    if graph.is_op(node, "MatMul"):
        return _Product(node, x, w, turned=True)
    is_plain = graph.attribute_float(node, "alpha", 1.0) == graph.attribute_float(node, "beta", 1.0) == 1.0
    if not graph.is_op(node, "Gemm") or not is_plain or graph.attribute_int(node, "transA", 0):
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        cell.biases.append(node.inputs[2])
    return _Product(node, x, w, turned=not graph.attribute_int(node, "transB", 0))


def _is_vector(bias: ir.Value, size: int) -> bool:
    tensor = graph.constant(bias)
    is_float = tensor is not None and tensor.dtype is ir.DataType.FLOAT
    return is_float and tensor is not None and tuple(tensor.shape.numpy()) in ((size,), (1, size))


def _inner(value: ir.Value | None, op: str, reader: ir.Node) -> ir.Node | None:
    """The node of this operator that makes a value which `reader` alone reads."""
    node = graph.own_producer(value, reader)
    return node if graph.is_op(node, op) else None


def _gate(product: ir.Node, op: str) -> ir.Node | None:
    return next((node for value in product.inputs if (node := _inner(value, op, product)) is not None), None)


def _sigmoid(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    return _inner(value, "Sigmoid", reader)


def _other(product: ir.Node, value: ir.Value) -> ir.Value | None:
    """What a product of two reads besides `value`."""
    rest = [each for each in product.inputs if each is not value]
    return rest[0] if len(rest) == 1 else None


def _parts(gates: Sequence[ir.Node]) -> tuple[ir.Node | None, tuple[int, ...]]:
    """The Split whose four equal parts the gates are, each one, and which of them."""
    split = gates[0].inputs[0].producer() if gates[0].inputs[0] is not None else None
    if split is None or not graph.is_op(split, "Split") or graph.attribute_int(split, "axis", 0) not in (1, -1):
        return None, ()
    sizes = graph.constant(split.inputs[1]) if len(split.inputs) > 1 else None
    if len(split.inputs) > 1 and (sizes is None or len({*sizes.numpy().reshape(-1).tolist()}) != 1):
        return None, ()
    outputs = list(split.outputs)
    order = tuple(outputs.index(gate.inputs[0]) if gate.inputs[0] in outputs else -1 for gate in gates)
    alone = all(graph.only_consumer(value) is not None for value in outputs)
    return (split, order) if alone and len(outputs) == _GATES and sorted(order) == [0, 1, 2, 3] else (None, ())


class _Maker:
    """Makes LSTMs; cells that share a weight share what is made of it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._weights: dict[tuple[int, tuple[int, ...], bool], ir.Value] = {}
        self._states: dict[ir.Value, ir.Value] = {}  # by those that a cell made, which the next one reads

    def replace(self, cell: _Cell) -> None:
        """The cell becomes an LSTM where its new c was made: behind all that it reads, before all that read it."""
        place = cell.c_new.producer()
        assert place is not None and place.graph is not None
        owner, name = place.graph, cell.products[0].node.name or ""
        axes = graph.add_constant(owner, self._names.fresh(f"{name}_axes"), ir.tensor(np.zeros(1, np.int64)))

        def moved(op: str, value: ir.Value) -> ir.Value:
            made = self._names.fresh(f"{value.name}_{op.lower()}")
            return graph.add_node(place, op, [value, axes], made, made)

        read = (cell.products[0].x, cell.products[1].x, cell.c)
        x, h, c = (moved("Unsqueeze", self._states.get(value, value)) for value in read)
        w, r = (self._weight(product, cell.order) for product in cell.products)
        inputs = [x, w, r, self._bias(cell, owner, name), None, h, c]
        cell.products[0].node.name = self._names.fresh(f"{name}_of_x")
        lstm = ir.node("LSTM", inputs, {"hidden_size": cell.h_size}, num_outputs=3, name=name)
        for output, word in zip(lstm.outputs, ("", "h", "c"), strict=True):
            output.name = self._names.fresh(f"{name}_{word}") if word else ""
        place.prepend(lstm)
        for old, new in ((cell.h_new, lstm.outputs[1]), (cell.c_new, lstm.outputs[2])):
            self._states[old] = moved("Squeeze", new)
            graph.replace_value(old, self._states[old])
        owner.remove(cell.inner, safe=True)

    def _weight(self, product: _Product, order: tuple[int, ...]) -> ir.Value:
        """[1, 4 · H, K], gates in ONNX's order."""
        key = (id(product.w), order, product.turned)
        if key not in self._weights:
            tensor, owner = graph.constant(product.w), product.w.graph
            assert tensor is not None and isinstance(owner, ir.Graph)

            def gates(w: NDArray) -> NDArray:
                return _in_order(w.T if product.turned else w, order)[None]

            how = f"gates {order} {product.turned}"
            made = graph.lazily(tensor, gates, shape=(1, product.n, product.k), how=how)
            self._weights[key] = graph.add_constant(owner, self._names.fresh(f"{product.w.name}_gates"), made)
            self._weights[key].meta.update(product.w.meta)
        return self._weights[key]

    def _bias(self, cell: _Cell, owner: ir.Graph, name: str) -> ir.Value | None:
        """[1, 8 · H]: all of it is added to the product of x."""
        if not cell.biases:
            return None
        size = cell.products[0].n
        both = np.zeros((1, 2 * size), np.float32)
        for bias in cell.biases:
            tensor = graph.constant(bias)
            assert tensor is not None
            both[0, :size] += tensor.numpy().reshape(-1)
        both[0, :size] = _in_order(both[0, :size], cell.order)
        return graph.add_constant(owner, self._names.fresh(f"{name}_bias"), ir.tensor(both))


def _in_order(rows: NDArray, order: tuple[int, ...]) -> NDArray:
    """Rows of four gates, those of the gate that `order` names first before the others."""
    parts = rows.reshape(_GATES, -1, *rows.shape[1:])
    return np.ascontiguousarray(parts[list(order)]).reshape(rows.shape)

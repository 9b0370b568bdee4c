"""Numbers on the way to usual ones that float16 does not hold: squares from 256 on, sums of many, exponentials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.attention import number_of
from onnxq.planning.counts import bodies
from onnxq.planning.counts.find_counts import BOUNDED
from onnxq.planning.counts.growth import SUMS
from onnxq.planning.counts.turns import totals_of
from onnxq.planning.counts.uses import LOOKUPS, MOVES, kernels_of, numbers_of

#: Why what computes with them stays in float.
REASON = "adds up squares, products or exponentials, which are more than half precision holds"
_ADD_UP = frozenset({"ReduceMean", *SUMS} - {"CumSum"})
#: What makes numbers as large as those that it reads, of which constants and small ones are none.
_CARRIES = frozenset(
    [
        *("Abs", "Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "GlobalMaxPool", "Max", "MaxPool", "Min"),
        *("Cast", "Ceil", "Floor", "Mod", "Neg", "Pad", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "Relu"),
        *("Round", "Sub", "Sum", "Where", *MOVES),
    ]
)
#: What adds up products of rows, in float32 at a price.
_PRODUCTS = ("Einsum", "MatMul")
_LAYERS = ("Conv", "ConvTranspose", "Gemm", *_PRODUCTS)
#: What makes numbers beyond float16 of such as 12.
_EXPONENTIALS = frozenset({"Cosh", "Exp", "Sinh"})
#: What makes small numbers, whatever it reads.
_SMALL = frozenset(
    [
        *("And", "ArgMax", "ArgMin", "ConstantOfShape", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Log", "NonZero", "Not", "OneHot", "Or", "Range", "Shape", "Sign", "Size", "Xor", *BOUNDED),
    ]
)
#: What makes usual numbers of large ones, beside quotients.
_ROOTS = ("Log", "Pow", "Reciprocal", "Sqrt")


@dataclass(frozen=True)
class Size:
    """How large numbers are: as this power of activations, times this power of the number of what was added up."""

    power: float = 1.0
    number: float = 0.0

    @property
    def is_large(self) -> bool:
        """Whether they may be infinite, or 0, in float16 where activations are usual numbers."""
        return abs(self.number) >= 1 or abs(self.power) + abs(self.number) > 1

    def to(self, power: float) -> Size:
        return Size(self.power * power, self.number * power)


USUAL, SMALL = Size(), Size(0.0)


def large_in(model: ir.Model) -> set[ir.Node]:
    """Nodes that compute with large numbers before something makes usual ones of them.

    1. Large are squares and products of activations, sums of many, exponentials, and the reciprocals of all these; what
       is made of them alone, constants and small numbers; roots of sums of squares.
    2. They matter where they are added up, divided by each other or by how many they are, or where a root, a logarithm
       or a reciprocal is taken of them: there such nodes are found, and the quotients.
    3. Small are sizes, what a function bounds (gates, shares, masks) and what is divided by its own norm.
    4. Products of rows are found where nothing but a quotient or a root is made of them: scores of attention are not.
       So are layers that have no negative weight, as bands of a spectrum; others make activations.
    5. What adds to numbers that a loop carries on is found, whatever becomes of them.
    6. What takes a mean off only to square the rest is found: it reads the mean where that is.
    """
    nodes = [node for node in graph.nodes(model) if node.domain == "" and node.outputs]
    sizes = _Sizes()
    for node in nodes:
        sizes.visit(node)
    found = _ending(sizes)
    centred = (node for node in nodes if node.op_type == "Sub" and _makes_for(node, found))
    return found | {node for node in centred if graph.is_op(graph.producer(node.inputs[1]), "ReduceMean")}


def square_of(node: ir.Node | None) -> ir.Value | None:
    """Of what a node makes squares."""
    if node is None or node.domain != "" or len(node.inputs) != 2:
        return None
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    return node.inputs[0] if node.op_type == "Pow" and number_of(node.inputs[1]) == 2.0 else None


class _Sizes:
    """One walk through a model.

    Attributes:
        known: of values; all others are usual.
        makers: of large numbers, in order.
        carried: those of them that make them of large ones and of small.
        quotients: by large numbers, and of sums by how many were added up.
        adding: what adds to numbers that a loop carries on.
        branched: what branches of If make, and what that is outside of them.
    """

    def __init__(self) -> None:
        self.known: dict[ir.Value, Size] = {}
        self.makers: list[ir.Node] = []
        self.carried, self.quotients, self.adding = set[ir.Node](), set[ir.Node](), set[ir.Node]()
        self.branched: dict[ir.Value, ir.Value] = {}

    def of(self, value: ir.Value) -> Size:
        if graph.constant(value) is not None or (value.dtype is not None and value.dtype not in graph.FLOATS):
            return SMALL
        maker = value.producer()
        if value in self.known or maker is None or not graph.is_op(maker, "If"):
            return self.known.get(value, USUAL)
        made = [self.of(link.before) for link in bodies.out_of(maker) if link.after is value]
        return max(made, key=_largest, default=USUAL)

    def visit(self, node: ir.Node) -> None:
        if graph.has_body(node):
            self.branched.update((link.before, link.after) for link in bodies.out_of(node) if node.op_type == "If")
            for total in totals_of(node):
                self.adding.update(total.nodes)
                self.known.update((link.after, Size(number=1.0)) for link in total.links)
            return
        numbers = numbers_of(node)
        size = self._made(node, [self.of(value) for value in numbers], numbers)
        if math.isnan(size.power) or size.power == -math.inf:
            size = SMALL  # by exponentials
        self.known.update(dict.fromkeys(node.outputs, size))
        if size.is_large:
            self.makers.append(node)

    def _made(self, node: ir.Node, read: list[Size], numbers: Sequence[ir.Value]) -> Size:
        op = node.op_type
        if op in _SMALL or _is_bounded(node):
            return SMALL
        if not read or (op in LOOKUPS and graph.constant(numbers[0]) is not None):
            return USUAL
        a = read[0]
        if op in SUMS:
            to, number = SUMS[op]
            return Size(to * a.power, to * a.number + number)
        if op in _EXPONENTIALS:
            return Size(math.inf)
        if op in _LAYERS and any(graph.constant(value) is not None for value in numbers):
            return self._layer(node, max(read, key=_largest))
        if op in ("Mul", *_PRODUCTS):
            return self._product(node, read, numbers)
        match op, read:
            case "Div", [_, by]:
                return self._quotient(node, a, by)
            case "Pow", [_, _] if (power := number_of(node.inputs[1])) is not None:
                return a.to(power)
            case "Sqrt", _:
                return a.to(0.5)
            case "Reciprocal", _:
                return a.to(-1.0)
        return self._joined(node, read) if op in _CARRIES else USUAL

    def _product(self, node: ir.Node, read: list[Size], numbers: Sequence[ir.Value]) -> Size:
        made = Size(sum(size.power for size in read), sum(size.number for size in read))
        factors = [size for size in read if size != SMALL]
        if len(factors) == 1:
            self.carried.add(node)
            if factors[0].is_large and factors[0].number > 0 and any(map(_makes_smaller, numbers)):
                self.quotients.add(node)
        elif node.op_type == "Mul" and any(size.is_large and min(size.power, size.number) < 0 for size in factors):
            self.quotients.add(node)
            return Size(made.power)
        return made

    def _layer(self, node: ir.Node, read: Size) -> Size:
        if read.power <= 1 or not all((weight.tensor.numpy() >= 0).all() for weight in kernels_of(node)):
            return USUAL  # activations
        self.carried.add(node)
        return read

    def _quotient(self, node: ir.Node, a: Size, by: Size) -> Size:
        if by.is_large:
            self.quotients.add(node)
            return by.to(-1.0) if a == SMALL else Size(a.power - by.power)
        if by == SMALL and a.is_large:
            self.carried.add(node)
            if a.number > 0:
                self.quotients.add(node)
            return Size(a.power)
        return Size(a.power - by.power, a.number)

    def _joined(self, node: ir.Node, read: list[Size]) -> Size:
        large = [size for size in read if size.is_large]
        if large and all(size.is_large or size == SMALL for size in read):
            self.carried.add(node)
        elif large:
            return USUAL  # activations
        return max(large or read, key=_largest)

    def uses(self, node: ir.Node) -> Iterator[tuple[ir.Node, int]]:
        """Of what it makes, behind the If that it is in a branch of too."""
        values = list(node.outputs)
        for value in values:
            yield from value.uses()
            if value in self.branched:
                values.append(self.branched[value])


def _ending(sizes: _Sizes) -> set[ir.Node]:
    """Makers of large numbers, from the last to the first, of which usual ones are made; and what makes these."""
    found, passing = sizes.quotients | sizes.adding, sizes.quotients | sizes.carried
    for node in reversed(sizes.makers):
        uses = list(sizes.uses(node))
        if graph.is_op(node, *_LAYERS):
            is_found = all(
                _is_root(reader, index) or (reader in found and (reader in passing or graph.is_op(reader, *_PRODUCTS)))
                for reader, index in uses
            )
        else:
            is_square = any(sizes.of(value).power > 1 for value in node.outputs)
            is_found = any(
                _is_root(reader, index)
                or (is_square and index == 0 and graph.is_op(reader, *_ADD_UP))
                or (reader in found and reader.op_type not in _EXPONENTIALS)
                for reader, index in uses
            )
        if is_found and uses:
            found.add(node)
    return found


def _largest(size: Size) -> tuple[float, float]:
    return abs(size.power), abs(size.number)


def _is_bounded(node: ir.Node) -> bool:
    """Whether this is a Clip between two constants."""
    if node.op_type != "Clip":
        return False
    bounds = [graph.constant(value) is not None for value in node.inputs[1:3]]
    return bounds == [True, True] or {"min", "max"} <= node.attributes.keys()


def _makes_smaller(value: ir.Value) -> bool:
    """Whether as a factor it makes means of sums: a constant below 1."""
    number = number_of(value)
    return number is not None and abs(number) < 1


def _is_root(node: ir.Node, index: int) -> bool:
    """Whether it makes usual numbers of the large ones that it reads there."""
    number = number_of(node.inputs[1]) if graph.is_op(node, "Pow") and len(node.inputs) > 1 else None
    return index == 0 and graph.is_op(node, *_ROOTS) and (number is None or number <= 1)


def _makes_for(node: ir.Node, readers: set[ir.Node]) -> bool:
    """Whether only squares among these read what it makes."""
    uses = list(node.outputs[0].uses())
    return bool(uses) and all(use.node in readers and square_of(use.node) is not None for use in uses)

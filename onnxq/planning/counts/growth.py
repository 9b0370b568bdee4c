"""Which numbers grow with a size of the inputs that is open: ranges that were seen do not hold them at others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Dim, Types
from onnxq.planning.counts import bodies
from onnxq.planning.counts.uses import CHOOSES, MOVES, PLACES_BESIDE, numbers_of

#: Why what computes with them stays in float.
REASON = "reads places or lengths that grow with an open size, beyond the ranges that data show"
#: What makes something of the numbers at its first input that is as large as these, by whatever it reads besides.
_KEEPS = frozenset(
    [
        *("Abs", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Conv", "ConvTranspose"),
        *("DepthToSpace", "Elu", "Floor", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "HardSwish", "LeakyRelu"),
        *("MaxPool", "Mish", "Neg", "PRelu", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "Relu"),
        *("Resize", "Round", "Selu", "Softplus", "SpaceToDepth", "Swish", "ThresholdedRelu", "TopK", "Upsample"),
        *MOVES,
    ]
)
#: What is as large as the largest of what it reads.
_JOINS = frozenset({"Add", "Gemm", "Mean", "Range", "Sub", "Sum", *CHOOSES} - {"Min"})
_PRODUCTS = frozenset({"Einsum", "MatMul", "Mul"})
#: To which power sums take what they read, and to which the number of what they add up.
_SUMS = {
    "CumSum": (1.0, 1.0),
    "ReduceL1": (1.0, 1.0),
    "ReduceL2": (1.0, 0.5),
    "ReduceSum": (1.0, 1.0),
    "ReduceSumSquare": (2.0, 1.0),
}
#: Places along one axis, whatever is there; along this one unless they say otherwise.
_PLACES = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
#: Of models with subgraphs: into them, out of them, and out of those around them.
WALKS = 3
#: Nodes that are followed to what a sum counts.
_FAR = 8


def growing_in(model: ir.Model, types: Types) -> set[ir.Value]:
    """Values that grow with an open size, from where that is asked for to where a function bounds them.

    1. Each value that is computed of sizes has the power of them with which it grows: a size, and places counted up to
       it, 1, the area of an image 2, places divided by a size 0.
    2. Activations grow with what is added to them, put beside them or is their factor, and what a layer makes of them
       does; by themselves they do not, whatever is summed up in them.

    Args:
        types: of the model's values.
    """
    powers, nodes = _Powers(types), list(graph.nodes(model))
    for _ in range(WALKS if any(map(graph.has_body, nodes)) else 1):
        for node in nodes:
            if graph.has_body(node):
                powers.enter(node)
            elif node.domain == "" and node.outputs:
                powers.visit(node)
    return {value for value, power in powers.found.items() if power > 0}


class _Powers:
    def __init__(self, types: Types) -> None:
        self.types = types
        #: Of values that sizes are part of.
        self.found: dict[ir.Value, float] = {}
        #: Those that are computed of sizes and constants alone.
        self.of_sizes: set[ir.Value] = set()

    def visit(self, node: ir.Node) -> None:
        op, numbers = node.op_type, numbers_of(node)
        numbers = numbers[:1] if op in _KEEPS or op in _SUMS else numbers
        if op in ("ArgMax", "ArgMin", "Shape", "Size", "NonZero", "ConstantOfShape"):
            is_of_sizes, power = True, float(op != "ConstantOfShape" and self._is_open(node))
        else:
            # What is looked up in a table by what the model is given is an activation, whatever the table is of.
            read = [value for value in node.inputs if value is not None]
            is_of_sizes = all(graph.constant(value) is not None or value in self.of_sizes for value in read)
            power = self._power(node, numbers)
        # Activations by themselves do not grow, nor do they get smaller for a size that divides them, as in a mean.
        is_known = is_of_sizes or all(graph.constant(value) is not None or value in self.found for value in numbers)
        if power > 0 or is_known:
            self.found.update(dict.fromkeys(node.outputs, power))
            self.of_sizes.update(node.outputs if is_of_sizes else ())
        if op in PLACES_BESIDE:
            self.found.update(dict.fromkeys(node.outputs[1:], float(self._is_open(node))))
            self.of_sizes.update(node.outputs[1:])

    def enter(self, node: ir.Node) -> None:
        """What goes into subgraphs, and what is known by now of what comes out; turns are counted."""
        for link in bodies.all_links(node):
            if link.before in self.found:
                self.found[link.after] = max(self.found.get(link.after, 0.0), self.found[link.before])
            if link.before in self.of_sizes:
                self.of_sizes.add(link.after)
        if graph.is_op(node, "Loop") and graph.constant(node.inputs[0]) is None:
            for body in graph.bodies(node):
                self.found[body.inputs[0]] = 1.0
                self.of_sizes.add(body.inputs[0])

    def _power(self, node: ir.Node, numbers: list[ir.Value]) -> float:
        op, read = node.op_type, [self.found.get(value, 0.0) for value in numbers]
        if not read:
            return 0.0
        if op == "Clip":
            most = node.inputs[2] if len(node.inputs) > 2 else None
            is_bounded = most is not None or "max" in node.attributes
            return min(read[0], 0.0 if most is None else self.found.get(most, 0.0)) if is_bounded else read[0]
        if op in _SUMS:
            power, of_number = _SUMS[op]
            return power * read[0] + of_number * (self._is_counted(numbers[0]) and self._is_open(node))
        if op == "ReduceProd":
            return read[0] * self._factors(numbers[0])
        if op in _KEEPS:
            return read[0]
        if op in _JOINS:
            return max(read)
        if op in _PRODUCTS:
            return sum(read) + (op != "Mul" and all(map(self._is_counted, numbers)) and self._adds_open(node))
        match op, read:
            case "Div", [a, b]:
                return a - b
            case "Reciprocal", [a]:
                return -a
            case "Sqrt", [a]:
                return a / 2
            case "Pow", [a, _]:
                return a * _number(numbers[1])
            case (("Min" | "Mod"), _):
                return min(read)
            case _:
                return 0.0

    def _is_counted(self, value: ir.Value | None, far: int = _FAR) -> bool:
        """Whether sums of it count something: truth values, or what is computed of sizes."""
        if value is None or value in self.of_sizes or graph.constant(value) is not None:
            return value is not None
        maker, dtype = value.producer(), value.dtype or self.types.of(value).dtype
        if dtype is not None and dtype not in graph.FLOATS:
            return True
        if maker is None or not far:
            return False
        read = numbers_of(maker) if maker.op_type in ("Add", "Mul", "Neg", "Sub") else list(maker.inputs[:1])
        return maker.op_type in ("Add", "Cast", "Mul", "Neg", "Sub", *MOVES) and all(
            self._is_counted(each, far - 1) for each in read
        )

    def _is_open(self, node: ir.Node) -> bool:
        """Whether a size that it asks for, or sums over, is not fixed."""
        value = node.inputs[0] if node.inputs else None
        shape = None if value is None else self.types.of(value).shape
        if shape is None:
            return True
        if node.op_type == "Shape":
            start, end = graph.attribute_int(node, "start", 0), graph.attribute_int(node, "end", len(shape))
            return not all(isinstance(dim, int) for dim in shape[start:end])
        axes = graph.constant(node.inputs[1]) if node.op_type in _SUMS and len(node.inputs) > 1 else None
        chosen = node.attributes.get_ints("axes", None) if axes is None else axes.numpy().reshape(-1).tolist()
        if node.op_type in _PLACES:
            chosen = [graph.attribute_int(node, "axis", _PLACES[node.op_type])]
        dims = [shape[axis] for axis in chosen if -len(shape) <= axis < len(shape)] if chosen else shape
        return not all(isinstance(dim, int) for dim in dims)

    def _adds_open(self, node: ir.Node) -> bool:
        """Whether a product of matrices adds up as many products as a size that is not fixed."""
        shapes = [None if value is None else self.types.of(value).shape for value in node.inputs]
        known = [shape for shape in shapes if shape]
        if len(known) < len(shapes):
            return True
        return any(not any(isinstance(dim, int) for dim in dims) for dims in _added_up(node, known))

    def _factors(self, value: ir.Value) -> int:
        """Of how many numbers a product is, as far as that is known: else two, as of a height and a width."""
        shape = self.types.of(value).shape
        return shape[0] if shape and len(shape) == 1 and isinstance(shape[0], int) else 2


def _added_up(node: ir.Node, shapes: Sequence[Sequence[Dim]]) -> Iterator[list[Dim]]:
    """What is known of each size along which products are added up, by one operand and by the other."""
    if node.op_type == "MatMul":
        yield [shapes[0][-1], shapes[1][-2:][0]]
        return
    operands, _, out = graph.attribute_string(node, "equation", "").replace(" ", "").partition("->")
    if "..." in operands:
        yield []
        return
    sizes: dict[str, list[Dim]] = {}
    for part, shape in zip(operands.split(","), shapes, strict=False):
        for letter, dim in zip(part, shape, strict=False):
            sizes.setdefault(letter, []).append(dim)
    yield from (dims for letter, dims in sizes.items() if letter not in out)


def _number(value: ir.Value) -> float:
    """The largest of constants; 0 of others."""
    tensor = graph.constant(value)
    return float(tensor.numpy().max()) if tensor is not None and tensor.size else 0.0

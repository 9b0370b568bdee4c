"""Which numbers grow with a size of the inputs that is open: ranges that were seen do not hold them at others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Dim, Types, is_named
from onnxq.planning.counts import bodies
from onnxq.planning.counts.products import ADD_PRODUCTS, sum_of_products
from onnxq.planning.counts.turns import adds_in_place, totals_of
from onnxq.planning.counts.uses import CHOOSES, MOVES, PLACES_BESIDE, numbers_of

#: Why what computes with them stays in float.
REASON = "reads places, lengths or sums that grow with an open size, beyond the ranges that data show"
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
#: Those that make no smaller numbers of ones that are smaller in the mean: what they add, or the largest, is left.
_KEEPS_LARGE = frozenset(
    [
        *("BatchNormalization", "Conv", "ConvTranspose", "GlobalMaxPool", "MaxPool", "ReduceLogSumExp", "ReduceMax"),
        *("Softplus", "TopK"),
    ]
)
#: What is as large as the largest of what it reads.
_JOINS = frozenset({"Add", "Mean", "Range", "Sub", "Sum", *CHOOSES} - {"Min"})
#: To which power sums take what they read, and to which the number of what they add up.
SUMS = {
    "CumSum": (1.0, 1.0),
    "ReduceL1": (1.0, 1.0),
    "ReduceL2": (1.0, 0.5),
    "ReduceSum": (1.0, 1.0),
    "ReduceSumSquare": (2.0, 1.0),
}
#: What makes shares of one: the more of them there are, the smaller each is.
_SHARES = frozenset({"EyeLike", "Hardmax", "Softmax"})
#: What looks along one axis; along this one unless they say otherwise.
_ALONG = {"ArgMax": 0, "ArgMin": 0, "EyeLike": -1, "Hardmax": -1, "LogSoftmax": -1, "Softmax": -1, "TopK": -1}
#: Of models with subgraphs: into them, out of them, and out of those around them.
WALKS = 3
#: Nodes that are followed to what a sum counts.
_FAR = 8
#: Constants of more numbers are not looked into.
_FEW = 1 << 10
#: What is added only to keep from dividing by 0, or from taking its logarithm.
_TINY = 1e-6
#: Loops of more turns end when a condition says so.
_MOST_TURNS = 1 << 20


def growing_in(model: ir.Model, types: Types) -> set[ir.Value]:
    """Values that grow with an open size, from where that is asked for to where a function bounds them.

    1. Each value has the power of sizes with which its numbers grow in the mean: a size, and places counted up to it,
       1, the area of an image 2, places divided by a size 0.
    2. Activations have 0, and grow with what is added to them, put beside them or is their factor; what a layer makes
       of them does too.
    3. A sum over an open axis grows with the number of what it adds up. Shares of one (a Softmax over such an axis,
       what is divided by its sum or its number) have -1, as has what decays from place to place: what they weight is a
       mean, which does not grow.
    4. Sums that choose do not grow: a product with places that are equal to something, or with a matrix of truth
       values, or one that the model is given, for each of an open number of results (an alignment, the neighbours in a
       graph).
    5. Nor do products of activations that are added up over an axis of which it is not known that it is open: most are
       scores of queries and keys.
    6. What each turn of a Loop or Scan adds to what it carries on (`turns.py`) grows with the number of turns, if that
       is open.

    Args:
        types: of the model's values.
    """
    powers, nodes = _Powers(types, model.graph.inputs), list(graph.nodes(model))
    for walk in range(WALKS if any(map(graph.has_body, nodes)) else 1):
        for node in nodes:
            if graph.has_body(node):
                if walk:
                    powers.add_turns(node)
                powers.enter(node)
            elif node.domain == "" and node.outputs:
                powers.visit(node)
    return {value for value, power in powers.found.items() if power > 0}


class _Powers:
    def __init__(self, types: Types, inputs: Sequence[ir.Value]) -> None:
        self.types = types
        self.open = {dim for value in inputs for dim in types.of(value).shape or () if isinstance(dim, str)}
        #: Of values that sizes are part of.
        self.found: dict[ir.Value, float] = {}
        #: Those that are computed of sizes and constants alone.
        self.of_sizes: set[ir.Value] = set()

    def visit(self, node: ir.Node) -> None:
        op, numbers = node.op_type, numbers_of(node)
        numbers = numbers[:1] if op in _KEEPS or op in SUMS else numbers
        if op in ("ArgMax", "ArgMin", "Shape", "Size", "NonZero", "ConstantOfShape"):
            is_of_sizes, power = True, float(op != "ConstantOfShape" and self._is_open(node))
        else:
            # What is looked up in a table by what the model is given is an activation, whatever the table is of.
            read = [value for value in node.inputs if value is not None]
            is_of_sizes = all(graph.constant(value) is not None or value in self.of_sizes for value in read)
            power = self._power(node, numbers)
        # Activations that nothing is known of have a power of 0.
        is_known = is_of_sizes or all(graph.constant(value) is not None or value in self.found for value in numbers)
        if power != 0 or is_known:
            self.found.update(dict.fromkeys(node.outputs, power))
            self.of_sizes.update(node.outputs if is_of_sizes else ())
        if op in PLACES_BESIDE:
            self.found.update(dict.fromkeys(node.outputs[1:], float(self._is_open(node))))
            self.of_sizes.update(node.outputs[1:])

    def enter(self, node: ir.Node) -> None:
        """What goes into subgraphs, and what is known by now of what comes out; the turns of a Loop are
        counted."""
        for link in bodies.all_links(node):
            if link.before in self.found:
                self.found[link.after] = max(self.found.get(link.after, 0.0), self.found[link.before])
            if link.before in self.of_sizes:
                self.of_sizes.add(link.after)
        if self._has_open_turns(node):
            for body in graph.bodies(node) if graph.is_op(node, "Loop") else ():
                self.found[body.inputs[0]] = 1.0
                self.of_sizes.add(body.inputs[0])

    def add_turns(self, node: ir.Node) -> None:
        """What open numbers of turns add up, of which the powers are known by now."""
        for total in totals_of(node) if self._has_open_turns(node) else ():
            powers = [self.found.get(value, 0.0) for value in total.added if not _is_nought(value)]
            power = 1.0 + max(powers, default=-1.0)
            values = [total.links[0].before, *(link.after for link in total.links)]
            for value in values if power > 0 else ():
                self.found[value] = max(self.found.get(value, 0.0), power)

    def _has_open_turns(self, node: ir.Node) -> bool:
        """Whether how often a Loop or Scan takes its turn is not fixed."""
        if graph.is_op(node, "Loop"):
            turns = graph.constant(node.inputs[0])
            return turns is None or bool((turns.numpy() > _MOST_TURNS).any())
        if not graph.is_op(node, "Scan"):
            return False
        along = node.inputs[-graph.attribute_int(node, "num_scan_inputs", 1) :]
        axes = node.attributes.get_ints("scan_input_axes", [0] * len(along))
        shapes = [(self.types.of(value).shape, axis) for value, axis in zip(along, axes, strict=False) if value]
        dims = [shape[axis] if shape and -len(shape) <= axis < len(shape) else None for shape, axis in shapes]
        return bool(self.open) and not any(isinstance(dim, int) for dim in dims)

    def _power(self, node: ir.Node, numbers: list[ir.Value]) -> float:
        op, read = node.op_type, [self.found.get(value, 0.0) for value in numbers]
        if not read:
            return 0.0
        if op == "Clip":
            most = node.inputs[2] if len(node.inputs) > 2 else None
            is_bounded = most is not None or "max" in node.attributes
            read = [min(read[0], 0.0 if most is None else self.found.get(most, 0.0)) if is_bounded else read[0]]
        if op == "GlobalLpPool":
            return read[0] + self._adds_up(numbers[0], node) / graph.attribute_int(node, "p", 2)
        if op in SUMS:
            power, of_number = SUMS[op]
            return power * read[0] + of_number * self._adds_up(numbers[0], node)
        if op == "ReduceProd":
            return read[0] * self._factors(numbers[0])
        if op in _SHARES:
            return -float(self._is_open(node))
        if op in _KEEPS:
            is_kept = op not in _KEEPS_LARGE or (op == "Conv" and len(node.inputs) < 3)
            return read[0] if is_kept else max(read[0], 0.0)
        if op in _JOINS:
            joined = (power for value, power in zip(numbers, read, strict=True) if not _is_nought(value))
            return max(joined, default=0.0) + self._adds_in_place(node)
        if op in ADD_PRODUCTS:
            product = sum(read[:2] if op == "Gemm" else read) + self._adds_products(node, numbers)
            return max([product, *read[2:]]) if op == "Gemm" else product
        # What divides activations may be small in the mean, and is mostly kept from being small.
        by = read[-1] if numbers[-1] in self.of_sizes else max(read[-1], 0.0)
        match op, read:
            case "Mul", _:
                return sum(read) - any(map(self._picks, numbers))
            case "Div", [a, _]:
                return a - by
            case "Reciprocal", _:
                return -by
            case "Sqrt", [a]:
                return a / 2
            case (("Exp" | "Pow"), _) if by > 0 and numbers[-1] in self.of_sizes:
                return -1.0  # decays from place to place
            case "Exp", _ if (shares := _log_of_shares(numbers[0])) is not None:
                return -float(self._is_open(shares))
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
        return maker.op_type in ("Add", "Cast", "Mul", "Neg", "Pad", "Sub", *MOVES) and all(
            self._is_counted(each, far - 1) for each in read
        )

    def _is_open(self, node: ir.Node) -> bool:
        """Whether a size that it asks for, or sums over, is not fixed."""
        dims = self._dims(node)
        return dims is None or not all(isinstance(dim, int) for dim in dims)

    def _is_known_open(self, dim: Dim) -> bool:
        return is_named(dim) or dim in self.open

    def _dims(self, node: ir.Node) -> Sequence[Dim] | None:
        """The sizes that it asks for, or along which it sums or looks."""
        value = node.inputs[0] if node.inputs else None
        shape = None if value is None else self.types.of(value).shape
        if shape is None:
            return None
        if node.op_type == "Shape":
            return shape[graph.attribute_int(node, "start", 0) : graph.attribute_int(node, "end", len(shape))]
        if node.op_type == "GlobalLpPool":
            return shape[2:]
        has_axes = node.op_type.startswith(("CumSum", "Reduce")) and len(node.inputs) > 1
        axes = graph.constant(node.inputs[1]) if has_axes else None
        chosen = node.attributes.get_ints("axes", None) if axes is None else axes.numpy().reshape(-1).tolist()
        if node.op_type in _ALONG:
            chosen = [graph.attribute_int(node, "axis", _ALONG[node.op_type])]
        return [shape[axis] for axis in chosen if -len(shape) <= axis < len(shape)] if chosen else shape

    def _adds_up(self, value: ir.Value, node: ir.Node) -> bool:
        """Whether a sum is over as many numbers as a size that is not fixed. An axis of which nothing is known may be
        one if any input has such a size; where no axis is known, only sums that count are taken to grow."""
        dims = self._dims(node)
        may_be_open = bool(self.open) and dims is not None
        return self._is_open(node) and (may_be_open or self._is_counted(value))

    def _adds_in_place(self, node: ir.Node) -> bool:
        """Whether it adds an open number of rows to a fixed number of places: the graphs that nodes are of."""
        if not adds_in_place(node):
            return False
        data, indices, updates = (None if value is None else self.types.of(value).shape for value in node.inputs[:3])
        if data is None or indices is None or updates is None:
            return False
        if node.op_type == "ScatterND":
            depth = indices[-1] if indices else None
            places, rows = data[: depth if isinstance(depth, int) else 1], indices[:-1]
        else:
            axis = graph.attribute_int(node, "axis", 0)
            places, rows = data[axis : axis + 1 or None], updates[axis : axis + 1 or None]
        return all(isinstance(dim, int) for dim in places) and any(map(self._is_known_open, rows))

    def _adds_products(self, node: ir.Node, numbers: list[ir.Value]) -> bool:
        """The same of products, where none of what they are of just chooses."""
        added = sum_of_products(node, [self.types.of(value).shape for value in numbers])
        factors, is_open = numbers[: len(added.parts)], added.adds_open(self._is_known_open)
        if all(map(self._is_counted, factors)):
            return is_open is not False
        chooses = (
            self._picks(value) or (added.has_open_rows(i) and self._may_choose(value))
            for i, value in enumerate(factors)
        )
        return bool(is_open) and not any(chooses)

    def _picks(self, value: ir.Value) -> bool:
        """Whether it is 1 at the places that are equal to something, and 0 elsewhere: not so what marks words."""
        maker = _moved_from(value).producer()
        return (
            maker is not None and maker.op_type == "Equal" and any(self.found.get(v, 0) > 0 for v in numbers_of(maker))
        )

    def _may_choose(self, value: ir.Value) -> bool:
        """Whether a matrix is of truth values that are no count of places, or one that the model is given."""
        if value in self.of_sizes or graph.constant(value) is not None:
            return False
        return self._is_counted(value) or _moved_from(value).is_graph_input()

    def _factors(self, value: ir.Value) -> int:
        """Of how many numbers a product is, as far as that is known: else two, as of a height and a width."""
        shape = self.types.of(value).shape
        return shape[0] if shape and len(shape) == 1 and isinstance(shape[0], int) else 2


def _log_of_shares(value: ir.Value) -> ir.Node | None:
    """The node along whose axis the exponentials of `value` add up to 1: log p, or x - log Σ exp x."""
    maker = value.producer()
    if maker is not None and graph.is_op(maker, "Sub"):
        last = maker.inputs[1]
        maker = None if last is None else _moved_from(last).producer()
        return maker if graph.is_op(maker, "ReduceLogSumExp") else None
    return maker if graph.is_op(maker, "LogSoftmax") else None


def _moved_from(value: ir.Value) -> ir.Value:
    """What was moved and cast on the way."""
    maker = value.producer()
    while maker is not None and maker.op_type in ("Cast", *MOVES) and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def _is_nought(value: ir.Value) -> bool:
    """Whether all of it is 0, or what keeps from dividing by 0, which makes nothing larger that it is put beside."""
    value = _moved_from(value)
    maker, tensor = value.producer(), graph.constant(value)
    if maker is not None and maker.op_type == "ConstantOfShape":
        filled = maker.attributes.get("value")
        return filled is None or not filled.as_tensor().numpy().any()
    return tensor is not None and 0 < tensor.size <= _FEW and bool((np.abs(tensor.numpy()) <= _TINY).all())


def _number(value: ir.Value) -> float:
    """The largest of constants; 0 of others."""
    tensor = graph.constant(value)
    return float(tensor.numpy().max()) if tensor is not None and tensor.size else 0.0

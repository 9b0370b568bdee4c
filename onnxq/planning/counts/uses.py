"""What becomes of numbers: whether their turns and steps matter, or whether they only hide something."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.model.weights import HIDING, Weight, weights_of
from onnxq.planning.counts import bodies

#: What takes numbers out of a table, by integers.
LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
#: What only moves numbers, and has them at its first input.
MOVES = frozenset(
    [
        *("CastLike", "Compress", "DepthToSpace", "Expand", "Flatten", "Identity", "Reshape", "ReverseSequence"),
        *("Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", *LOOKUPS),
    ]
)
#: What chooses among numbers, and has them at these inputs; None: at all.
CHOOSES: dict[str, tuple[int, ...] | None] = {
    "Concat": None,
    "Max": None,
    "Min": None,
    "OneHot": (2,),
    "Pad": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}
#: What makes places beside what is found there, as its second output.
PLACES_BESIDE = frozenset({"MaxPool", "TopK"})
PRODUCTS = frozenset({"Div", "Einsum", "Gemm", "MatMul", "Mul"})
#: Through which an error of a part stays one of as many parts, and functions of which frequencies are made.
CARRIES = frozenset(
    [
        *("Add", "Clip", "CumSum", "Exp", "Log", "Neg", "Pow", "Reciprocal", "ReduceMean", "ReduceSum", "Sqrt"),
        *("Sub", "Sum"),
        *(*PRODUCTS, *CHOOSES, *MOVES),
    ]
)
#: Functions of angles, and of which whole numbers or truth values are made.
TURNS = frozenset({"Cos", "Sin", "Tan"})
STEPS = frozenset(
    ["Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Round", *TURNS]
)
#: What looks at places in a picture, or compares boxes, and has these at that input.
_PLACES = {"GridSample": 1, "NonMaxSuppression": 0, "RoiAlign": 1}
#: Sums of at most so many products are turned coordinates, and no layer of a network.
MOST_COORDINATES = 4


@dataclass
class Uses:
    """Values by what is done with them, however they are added up and multiplied on the way.

    Attributes:
        turned: sines and the like are made of them.
        stepped: those, and what is made whole, compared, or a place in a picture: an error of a half is one.
        switches: they are 0 or 1: multiplied by so low a number that it hides scores, or turned into truth values and
            for the rest only factors of something, or added up.
        masks: by value, whether all that reads it takes it for a mask, as far as that was asked: one may have as many
            readers as nodes, each of which asks.
    """

    turned: set[ir.Value] = field(default_factory=set)
    stepped: set[ir.Value] = field(default_factory=set)
    switches: set[ir.Value] = field(default_factory=set)
    masks: dict[ir.Value, bool] = field(default_factory=dict)


def numbers_of(node: ir.Node) -> list[ir.Value]:
    """What a node computes with, without axes, sizes and conditions."""
    if node.op_type in MOVES or node.op_type in ("CumSum", "ReduceSum", "Clip", "Cast", "Resize"):
        found = node.inputs[:1]
    else:
        chosen = CHOOSES.get(node.op_type)
        found = node.inputs if chosen is None else [node.inputs[i] for i in chosen if i < len(node.inputs)]
    return [value for value in found if value is not None]


def uses_in(nodes: list[ir.Node], types: Types) -> Uses:
    """Of all values, from the last node to the first; all are standard operators."""
    found = Uses()
    links = [link for node in nodes if graph.has_body(node) for link in bodies.all_links(node)]
    known = -1
    while known < len(found.turned) + len(found.stepped):  # again where subgraphs are, for those come behind their node
        known = len(found.turned) + len(found.stepped)
        for node in reversed(nodes):
            _add_steps(node, found, types)
        for link in links:
            _pass_on(found, link.after, [link.before])
        if not links:
            break
    for node in reversed(nodes):
        is_truth = _makes_truths(node, types) and all(_masks(value, found, types) for value in numbers_of(node))
        if is_truth or _hides(node) or (_keeps_switches(node) and node.outputs[0] in found.switches):
            found.switches.update(value for value in numbers_of(node) if graph.constant(value) is None)
    return found


def _add_steps(node: ir.Node, found: Uses, types: Types) -> None:
    numbers, op = numbers_of(node), node.op_type
    to = types.of(node.outputs[0]).dtype if op == "Cast" else None
    if op in TURNS:
        found.turned.update(numbers)
    if op in STEPS or op in _PLACES or (to is not None and to.is_integer()):
        steps = node.inputs[_PLACES[op] :][:1] if op in _PLACES else numbers
        found.stepped.update(value for value in steps if value and types.of(value).dtype in graph.FLOATS)
    if (op in CARRIES or to in graph.FLOATS) and not is_layer(node):
        for made in node.outputs:
            _pass_on(found, made, numbers)


def _pass_on(found: Uses, made: ir.Value, numbers: list[ir.Value]) -> None:
    for used in (found.turned, found.stepped):
        if made in used:
            used.update(numbers)


def kernels_of(node: ir.Node) -> list[Weight]:
    """The constants by which it makes sums of products, of any size."""
    return [] if graph.is_op(node, "Gather") else list(weights_of(node, least=1))


def is_layer(node: ir.Node) -> bool:
    """Whether it has a kernel, and is no product that may turn coordinates."""
    is_product = node.op_type in PRODUCTS
    return any(not is_product or w.shape[w.role.contraction] > MOST_COORDINATES for w in kernels_of(node))


def _makes_truths(node: ir.Node, types: Types) -> bool:
    return node.op_type == "Cast" and types.of(node.outputs[0]).dtype is ir.DataType.BOOL


def _masks(value: ir.Value, uses: Uses, types: Types) -> bool:
    """Whether everything that reads numbers, and what they are moved and cast to, takes them for a mask."""
    if value not in uses.masks:
        uses.masks[value] = all(
            _masks(node.outputs[0], uses, types)
            if _keeps_switches(node) and node.op_type != "Mul"
            else _reads_mask(value, node, uses, types)
            for node in {use.node: None for use in value.uses() if value in numbers_of(use.node)}
        )
    return uses.masks[value]


def _reads_mask(value: ir.Value, node: ir.Node, uses: Uses, types: Types) -> bool:
    if types.of(node.outputs[0]).dtype is ir.DataType.BOOL or node.op_type in ("CumSum", "ReduceSum", "Shape"):
        return True
    if node.op_type == "Where":  # something else is put where they are not 0
        truth = node.inputs[0].producer() if node.inputs[0] is not None else None
        is_truth = truth is not None and _makes_truths(truth, types)
        return is_truth and node.inputs[2] is value and _before_casts(node.inputs[0]) is _before_casts(value)
    is_factor = node.op_type == "Mul" and not any(graph.constant(other) is not None for other in node.inputs)
    return _hides(node) or (is_factor and uses.stepped.isdisjoint(node.outputs))


def _before_casts(value: ir.Value | None) -> ir.Value | None:
    """The number that was cast, however often."""
    while value is not None and graph.is_op(maker := value.producer(), "Cast") and maker is not None:
        value = maker.inputs[0]
    return value


def _hides(node: ir.Node) -> bool:
    return node.op_type == "Mul" and any(_most(value) <= HIDING for value in node.inputs)


def _keeps_switches(node: ir.Node) -> bool:
    """Whether what it makes of switches are switches: the same, the other way round, or those that both are on."""
    is_inverse = node.op_type == "Sub" and graph.constant(node.inputs[0]) is not None
    return is_inverse or node.op_type in ("Cast", "Mul") or node.op_type in MOVES


def _most(value: ir.Value | None) -> float:
    """The largest of a few constant numbers."""
    tensor = graph.constant(value)
    if tensor is None or not 0 < tensor.size <= 16 or tensor.dtype not in graph.FLOATS:
        return np.inf
    return float(tensor.numpy().astype(np.float64).max())

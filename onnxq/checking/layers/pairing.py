"""Which values of two models are the same: by name, by the operators that lead to them, by the order of execution."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.checking.layers.families import activation_of, family, has_bias, has_factor, has_sum
from onnxq.checking.layers.result import Pairing
from onnxq.checking.layers.side import Side, is_activation, others_of
from onnxq.model import graph

#: Operators that a narrow range of codes does the work of.
_CLIPS = ("Relu", "Clip")


@dataclass(frozen=True)
class Pair:
    """Two values that are the same, as they are made: `Side.stand` says where they are read."""

    a: ir.Value
    b: ir.Value
    how: Pairing


class Pairs:
    """The pairs of two models, each value in one at most.

    1. Values of the same name, whatever makes them. Where one model leaves a Relu out because the codes of the value
       before it end at zero, what those codes stand for is the value behind the Relu.
    2. Nodes of the same family that read the same values; of several that do, the first is the first.
       What one of them holds is a node of its own behind the other one: a normalization, a factor, a bias, an
       activation.
    3. What is left between these is matched along the order of execution. That is a guess, for others to look at.
    """

    def __init__(self, a: Side, b: Side) -> None:
        self._a, self._b = a, b
        self._found: dict[str, Pair] = {}
        self._taken: set[str] = set()
        #: Nodes that were matched: what they make may have its partner further on.
        self._used: set[int] = set()
        self._by_name()
        self._by_position()
        self._by_order()
        self._by_position()

    def in_order(self) -> list[Pair]:
        """Inputs first, then as A computes them."""
        places = {value.name: i for i, value in enumerate(self._a.made)}
        return sorted(self._found.values(), key=lambda pair: places.get(pair.a.name, len(places)))

    def _add(self, a: ir.Value, b: ir.Value, how: Pairing) -> None:
        if a.name and b.name and a.name not in self._found and b.name not in self._taken:
            self._found[a.name] = Pair(a, b, how)
            self._taken.add(b.name)

    def _by_name(self) -> None:
        for value in self._a.made:
            named = self._b.values.get(value.name or "")
            if named is None or not is_activation(named):
                continue
            root = self._b.root(named)
            cut = self._cut_off(self._a, value, self._b, root)
            if cut is not None and cut.name not in self._b.values:
                value = cut
            self._add(value, root, "name")

    @staticmethod
    def _cut_off(a: Side, value: ir.Value, b: Side, root: ir.Value) -> ir.Value | None:
        """What a Relu of A makes of `value`, where in B it is left to the codes of `root`."""
        reader = graph.only_consumer(value)
        if reader is None or not graph.is_op(reader, *_CLIPS) or b.stand(root) is root:
            return None
        behind = [use.node for form in b.forms(root) for use in form.uses()]
        return None if any(graph.is_op(node, *_CLIPS) for node in behind) else reader.outputs[0]

    def _by_position(self) -> None:
        """Until nothing more is found, as each pair may say what the next ones read."""
        while True:
            before = len(self._found)
            ours, theirs = self._grouped(self._a, is_a=True), self._grouped(self._b, is_a=False)
            for key, nodes in ours.items():
                others = theirs.get(key, [])
                if len(others) == len(nodes):
                    for node, other in zip(nodes, others, strict=True):
                        self._add_made(node, other, "position")
            if len(self._found) == before:
                return

    def _grouped(self, side: Side, *, is_a: bool) -> dict[Hashable, list[ir.Node]]:
        """Nodes whose result has no partner yet, by what they compute and of what, where all of that is paired."""
        paired = {(pair.a if is_a else pair.b).name: pair.a.name for pair in self._found.values()}
        found: dict[Hashable, list[ir.Node]] = {}
        for node in side.nodes:
            if side.made_by(node).name in paired or id(node) in self._used:
                continue
            read = [paired.get(side.root(value).name) for value in _read(node)]
            if read and None not in read:
                found.setdefault((family(node), *read), []).append(node)
        return found

    def _add_made(self, node: ir.Node, other: ir.Node, how: Pairing) -> None:
        self._used |= {id(node), id(other)}
        self._add(*self._ends(node, other), how)
        for a, b in zip(others_of(node), others_of(other), strict=False):
            self._add(a, b, how)

    def _ends(self, node: ir.Node, other: ir.Node) -> tuple[ir.Value, ir.Value]:
        """What two nodes make, where both have done as much: with the bias, and the activation, of the other one."""
        a, b = self._a.made_by(node), self._b.made_by(other)
        a, b = _with_rest(a, node, other, b), _with_rest(b, other, node, a)
        cut_a, cut_b = self._cut_off(self._a, a, self._b, b), self._cut_off(self._b, b, self._a, a)
        return cut_a or a, cut_b or b

    def _by_order(self) -> None:
        ours, theirs = self._tokens(self._a, is_a=True), self._tokens(self._b, is_a=False)
        matcher = difflib.SequenceMatcher(None, [t for t, _ in ours], [t for t, _ in theirs], autojunk=False)
        for block in matcher.get_matching_blocks():
            for i in range(block.size):
                node, other = ours[block.a + i][1], theirs[block.b + i][1]
                if node is not None and other is not None:
                    self._add_made(node, other, "order")

    def _tokens(self, side: Side, *, is_a: bool) -> Sequence[tuple[str, ir.Node | None]]:
        paired = {(pair.a if is_a else pair.b).name: pair.a.name for pair in self._found.values()}
        rows: list[tuple[str, ir.Node | None]] = []
        for node in side.nodes:
            partner = paired.get(side.made_by(node).name)
            if partner is not None or id(node) not in self._used:
                rows.append((f"={partner}", None) if partner is not None else (family(node), node))
        return rows


def _read(node: ir.Node) -> list[ir.Value]:
    """The activations that a node reads, but for scales and zero points that are found in every run."""
    values = [value for value in node.inputs if value is not None and is_activation(value)]
    return [v for v in values if not graph.is_op(v.producer(), "DynamicQuantizeLinear") or v.index() == 0]


def _with_rest(y: ir.Value, node: ir.Node, other: ir.Node, theirs: ir.Value) -> ir.Value:
    """What becomes of `y`, made by `node`, behind what `other`, which makes `theirs`, holds and `node` does not.

    A normalization folded into the weights, a factor, a bias, a sum, an activation.
    """
    reader = graph.only_consumer(y)
    if reader is not None and family(node) == "Conv" and graph.is_op(reader, "BatchNormalization"):
        behind = graph.only_consumer(theirs)
        if not graph.is_op(behind, "BatchNormalization"):
            y, reader = reader.outputs[0], graph.only_consumer(reader.outputs[0])
    is_scaled = has_factor(other) and not has_factor(node)
    if is_scaled and reader is not None and graph.is_op(reader, "Mul", "Div") and _reads_constant(reader):
        y, reader = reader.outputs[0], graph.only_consumer(reader.outputs[0])
    is_biased = has_bias(other) and not has_bias(node)
    if is_biased and reader is not None and graph.is_op(reader, "Add") and _reads_constant(reader):
        y, reader = reader.outputs[0], graph.only_consumer(reader.outputs[0])
    if has_sum(other) and not has_sum(node) and graph.is_op(reader, "Add") and reader is not None:
        y, reader = reader.outputs[0], graph.only_consumer(reader.outputs[0])
    word = activation_of(other)
    if word and not activation_of(node) and reader is not None and reader.op_type == word:
        y = reader.outputs[0]
    return y


def _reads_constant(node: ir.Node) -> bool:
    return not all(map(is_activation, node.inputs))

"""A model cut into pieces that run one after the other, each on what those before it have left."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph


@dataclass(frozen=True)
class Piece:
    """The nodes of the main graph from `first` to before `last`.

    Attributes:
        reads: the values that it needs from inputs and earlier pieces.
        makes: those that it makes and later pieces need.
        leaves: all that later pieces need, whoever makes them.
    """

    first: int
    last: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    leaves: tuple[str, ...]

    def model(self, whole: ir.Model, state: Mapping[str, NDArray], outputs: Sequence[str] = ()) -> ir.Model:
        """It as a model of its own.

        Args:
            whole: the model that was cut.
            state: one sample's numbers of the values that it reads, which tell their types.
            outputs: the values that it gives.
        """
        made = whole.clone()
        values = {value.name: value for value in (*made.graph.inputs, *_outputs(made))}
        inside = {id(node) for node in list(made.graph)[self.first : self.last]}
        made.graph.outputs.clear()
        for node in reversed(list(made.graph)[self.last :]):
            _remove(node)
        inputs = []
        for name in self.reads:
            old = values[name]
            kind = ir.TensorType(ir.DataType.from_numpy(state[name].dtype))
            new = ir.Value(name=name, type=kind, shape=ir.Shape([None] * state[name].ndim))
            old.name = f"{name}_before"
            old.replace_all_uses_with(new)
            inputs.append(new)
        for node in reversed([node for node in made.graph if id(node) not in inside]):
            _remove(node)
        made.graph.outputs.extend(values[name] for name in outputs)
        made.graph.inputs.clear()
        made.graph.inputs.extend(inputs)
        for name, value in list(made.graph.initializers.items()):
            if not value.uses():
                del made.graph.initializers[name]
        return made


def cut(model: ir.Model, targets: Collection[ir.Node]) -> list[tuple[Piece, list[ir.Node]]]:
    """The model in pieces, and which of `targets` lie in each: those of a piece do not depend on each other.

    What comes behind the last of them is in no piece. A target in the body of an If, Loop or Scan counts as that node.
    """
    nodes = list(model.graph)
    place = dict(_places(nodes))
    by_place: dict[int, list[ir.Node]] = {}
    for node in targets:
        by_place.setdefault(place[id(node)], []).append(node)
    bounds, behind = [0], set[int]()
    for i, node in enumerate(nodes):
        depends = any(id(value) in behind for value in graph.read_by(node))
        if depends and i in by_place:
            bounds.append(i)
            behind, depends = set(), False
        if depends or i in by_place:
            behind.update(id(value) for value in node.outputs)
    bounds.append(max(by_place, default=-1) + 1)
    return [
        (_piece(model, nodes, place, first, last), [n for i in range(first, last) for n in by_place.get(i, ())])
        for first, last in itertools.pairwise(bounds)
        if last > first
    ]


def _piece(model: ir.Model, nodes: list[ir.Node], place: Mapping[int, int], first: int, last: int) -> Piece:
    reads, makes, leaves = [], [], []
    made = [(-1, value) for value in model.graph.inputs]
    made += [(i, value) for i, node in enumerate(nodes[:last]) for value in node.outputs]
    for at, value in made:
        users = [place[id(use.node)] for use in value.uses()]
        if at < first and any(first <= user < last for user in users):
            reads.append(value.name or "")
        if any(user >= last for user in users):
            leaves.append(value.name or "")
            makes += leaves[-1:] if at >= first else []
    return Piece(first, last, tuple(reads), tuple(makes), tuple(leaves))


def _outputs(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph:
        yield from node.outputs


def _places(nodes: list[ir.Node]) -> Iterator[tuple[int, int]]:
    """(identity of a node, place of the node of the main graph that it is, or lies in)."""
    for i, node in enumerate(nodes):
        yield id(node), i
        for inner in graph.inside(node):
            yield id(inner), i


def _remove(node: ir.Node) -> None:
    graph.detach_bodies(node)
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)

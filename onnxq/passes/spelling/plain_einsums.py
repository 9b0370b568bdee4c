"""A product of matrices written as an Einsum, as JAX and Keras have dense layers and attention, becomes a MatMul."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.dimensions import add, begun
from onnxq.model.dims.known import Dim, Sizes
from onnxq.model.graph import Names

_ANY = "..."


@dataclass(frozen=True)
class _Product:
    """Axes by letter, of both operands and of the result, in their order.

    Attributes:
        each: of which there is a product each.
        kept, added: that the result has of one operand.
        summed: that are summed over.
    """

    x: str
    w: str
    out: str

    @property
    def each(self) -> str:
        return "".join(letter for letter in self.out if letter in self.x and letter in self.w)

    @property
    def kept(self) -> str:
        return "".join(letter for letter in self.x if letter not in self.w)

    @property
    def added(self) -> str:
        return "".join(letter for letter in self.out if letter not in self.x)

    @property
    def summed(self) -> str:
        return "".join(letter for letter in self.x if letter in self.w and letter not in self.out)

    @property
    def is_of_matrices(self) -> bool:
        """Whether no operand has a diagonal, or an axis of its own that is summed over."""
        once = all(count == 1 for part in (self.x, self.w, self.out) for count in Counter(part).values())
        whole = sorted(self.w) == sorted(self.each + self.summed + self.added)
        return once and whole and sorted(self.out) == sorted(self.each + self.kept + self.added)

    @property
    def is_single(self) -> bool:
        """Whether both matrices are told by one axis each way."""
        return len(self.kept) == len(self.summed) == len(self.added) == 1


class PlainEinsums(ir.passes.InPlacePass):
    """Einsum of two operands that is a product of matrices becomes MatMul, with a Transpose where axes lie otherwise.

    1. Several axes become one by Reshape where the second operand is a constant, whose own are folded behind this.
    2. Sums over axes of one operand, diagonals and products of vectors stay.
    3. Einsum repeats an axis of one index for any number of the other operand, which MatMul refuses where it sums over
       that. A size that the caller chooses may be 1: beside a constant, an Expand repeats what is given, and others
       stay. Sizes that a model computes, and that cannot be told, are what both operands have.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = list(graph.nodes(model))
        if not any(map(_is_candidate, nodes)):
            return ir.passes.PassResult(model, modified=False)
        work, modified = _Work(begun(model), Names(model), frozenset(model.graph.inputs)), False
        for node in nodes:
            if _is_candidate(node) and _written(node, work):
                modified = True
            else:
                add(node, work.sizes)
        return ir.passes.PassResult(model, modified)


@dataclass(frozen=True)
class _Work:
    """What is known of the values up to a node, and what the model is given."""

    sizes: Sizes
    names: Names
    given: frozenset[ir.Value]

    def may_repeat(self, one: Dim | None, other: Dim | None) -> bool:
        """Whether one of these sizes may be 1 where the other is more."""
        if one == other and one is not None:
            return False
        known = [dim for dim in (one, other) if isinstance(dim, int)]
        if 1 in known or len(known) == 2:
            return True
        names = [self._name(dim) for dim in (one, other) if isinstance(dim, tuple) and dim[0] in self.given]
        return len(known) + len(names) == 2 and (len(names) == 1 or None in names or names[0] != names[1])

    def _name(self, dim: tuple[ir.Value, int]) -> str | None:
        declared = None if dim[0].shape is None else dim[0].shape[dim[1]]
        return None if declared is None or isinstance(declared, int) else declared.value


def _is_candidate(node: ir.Node) -> bool:
    return graph.is_op(node, "Einsum") and len(node.inputs) == 2


def _written(node: ir.Node, work: _Work) -> bool:
    """Whether the MatMul took its place."""
    is_turned = graph.constant(node.inputs[0]) is not None
    x, w = reversed(node.inputs) if is_turned else node.inputs
    if x is None or w is None or graph.constant(x) is not None:
        return False
    dims = [work.sizes.of(value) for value in (x, w)]
    product = _product(node, [None if each is None else len(each) for each in dims], is_turned=is_turned)
    tensor = graph.constant(w)
    if product is None or not product.is_of_matrices or not product.summed or not product.added:
        return False
    if not product.is_single and (tensor is None or product.each):
        return False
    rows, others = (
        dict(zip(part, each or (), strict=False)) for part, each in zip((product.x, product.w), dims, strict=True)
    )
    repeated = [letter for letter in product.summed if work.may_repeat(rows.get(letter), others.get(letter))]
    if repeated and (tensor is None or any(isinstance(rows.get(a), int) or others[a] == 1 for a in repeated)):
        return False
    _write(node, x, w, product, work, repeats=bool(repeated))
    return True


def _product(node: ir.Node, ranks: Sequence[int | None], *, is_turned: bool) -> _Product | None:
    """What an Einsum says; None where that is not to be told.

    Args:
        ranks: of the operands, as far as they are known.
        is_turned: the second operand comes first.
    """
    equation = graph.attribute_string(node, "equation", "").replace(" ", "")
    operands, arrow, out = equation.partition("->")
    parts = operands.split(",")
    if len(parts) != 2:
        return None
    if not arrow:  # in the order of the alphabet, what stands there once
        letters = Counter(operands.replace(_ANY, "").replace(",", ""))
        out = _ANY * (_ANY in operands) + "".join(sorted(letter for letter, count in letters.items() if count == 1))
    parts = parts[::-1] if is_turned else parts
    counts = {
        None if rank is None else rank - len(part.replace(_ANY, ""))
        for part, rank in zip(parts, ranks, strict=True)
        if _ANY in part
    }
    free = [letter for letter in string.ascii_letters if letter not in equation]
    if counts:
        count = counts.pop()
        if counts or count is None or not 0 <= count <= len(free):
            return None
        parts, out = (
            [part.replace(_ANY, "".join(free[:count])) for part in parts],
            out.replace(_ANY, "".join(free[:count])),
        )
    fits = all(rank in (None, len(part)) for part, rank in zip(parts, ranks, strict=True))
    is_known = all(letter in string.ascii_letters for letter in "".join(parts) + out)
    return _Product(parts[0], parts[1], out) if fits and is_known else None


def _write(node: ir.Node, x: ir.Value, w: ir.Value, product: _Product, work: _Work, *, repeats: bool) -> None:
    each, kept, summed, added = product.each, product.kept, product.summed, product.added
    tensor, body = graph.constant(w), node.graph
    assert isinstance(body, ir.Graph)
    size = {} if tensor is None else dict(zip(product.w, tensor.shape.numpy(), strict=True))

    def placed(op_type: str, inputs: list[ir.Value], word: str, attributes: graph.Attributes | None = None) -> ir.Value:
        output = work.names.fresh(f"{node.name}_{word}")
        name = node.name or "" if op_type == "MatMul" else output
        value = graph.add_node(node, op_type, inputs, name, output, attributes)
        made = value.producer()
        assert made is not None
        made.metadata_props.update(node.metadata_props if op_type == "MatMul" else {})
        add(made, work.sizes)
        return value

    def turned(value: ir.Value, axes: str, to: str) -> ir.Value:
        perm = [axes.index(letter) for letter in to]
        return value if perm == sorted(perm) else placed("Transpose", [value], "turn", {"perm": perm})

    def shaped(value: ir.Value, op_type: str, shape: Sequence[int]) -> ir.Value:
        asked = ir.tensor(np.array(shape, np.int64))
        constant = graph.add_constant(body, work.names.fresh(f"{node.name}_shape"), asked)
        return placed(op_type, [value, constant], op_type.lower())

    left, right = turned(x, product.x, each + kept + summed), turned(w, product.w, each + summed + added)
    if repeats:
        left = shaped(left, "Expand", [size[letter] for letter in summed])
    if len(summed) > 1:
        rows = int(np.prod([size[letter] for letter in summed]))
        left = shaped(left, "Reshape", [0] * len(kept) + [rows])
    if len(summed) > 1 or len(added) > 1:
        right = shaped(right, "Reshape", [int(np.prod([size[letter] for letter in axes])) for axes in (summed, added)])
    found = placed("MatMul", [left, right], "product")
    if len(added) > 1:
        found = shaped(found, "Reshape", [0] * len(kept) + [size[letter] for letter in added])
    graph.replace_value(node.outputs[0], turned(found, each + kept + added, product.out))
    body.remove(node, safe=True)  # whose name the product has

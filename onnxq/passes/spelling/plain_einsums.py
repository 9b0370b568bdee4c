"""A product of matrices written as an Einsum, as JAX and Keras have dense layers and attention, becomes a MatMul."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.dimensions import sizes_of
from onnxq.model.dims.known import Sizes
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

    Several axes become one by Reshape where the second operand is a constant, whose own are folded behind this. Sums
    over axes of one operand, diagonals and products of vectors stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in graph.nodes(model) if graph.is_op(node, "Einsum") and len(node.inputs) == 2]
        sizes, names = sizes_of(model) if found else None, Names(model)
        made = [_written(node, sizes, names) for node in found if sizes is not None]
        return ir.passes.PassResult(model, modified=any(made))


def _written(node: ir.Node, sizes: Sizes, names: Names) -> bool:
    """Whether the MatMul took its place."""
    is_turned = graph.constant(node.inputs[0]) is not None
    x, w = reversed(node.inputs) if is_turned else node.inputs
    if x is None or w is None or graph.constant(x) is not None:
        return False
    dims = [sizes.of(value) for value in (x, w)]
    product = _product(node, [None if each is None else len(each) for each in dims], is_turned=is_turned)
    tensor = graph.constant(w)
    if product is None or not product.is_of_matrices or not product.summed or not product.added:
        return False
    if not product.is_single and (tensor is None or product.each):
        return False
    given = [
        dict(zip(part, each, strict=True)) for part, each in zip((product.x, product.w), dims, strict=True) if each
    ]
    for letter in product.summed:  # of one index it may stand for any number
        if len({size for each in given if isinstance(size := each.get(letter), int)}) > 1:
            return False
    _write(node, x, w, product, names)
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


def _write(node: ir.Node, x: ir.Value, w: ir.Value, product: _Product, names: Names) -> None:
    each, kept, summed, added = product.each, product.kept, product.summed, product.added
    tensor, body = graph.constant(w), node.graph
    assert isinstance(body, ir.Graph)
    size = {} if tensor is None else dict(zip(product.w, tensor.shape.numpy(), strict=True))

    def turned(value: ir.Value, axes: str, to: str) -> ir.Value:
        perm = [axes.index(letter) for letter in to]
        if perm == sorted(perm):
            return value
        name = names.fresh(f"{node.name}_turn")
        return graph.add_node(node, "Transpose", [value], name, name, {"perm": perm})

    def reshaped(value: ir.Value, shape: Sequence[int]) -> ir.Value:
        asked = ir.tensor(np.array(shape, np.int64))
        constant = graph.add_constant(body, names.fresh(f"{node.name}_shape"), asked)
        name = names.fresh(f"{node.name}_reshape")
        return graph.add_node(node, "Reshape", [value, constant], name, name)

    left, right = turned(x, product.x, each + kept + summed), turned(w, product.w, each + summed + added)
    if len(summed) > 1:
        rows = int(np.prod([size[letter] for letter in summed]))
        left = reshaped(left, [0] * len(kept) + [rows])
    if len(summed) > 1 or len(added) > 1:
        right = reshaped(right, [int(np.prod([size[letter] for letter in axes])) for axes in (summed, added)])
    found = graph.add_node(node, "MatMul", [left, right], node.name or "", names.fresh(f"{node.name}_product"))
    made = found.producer()
    assert made is not None
    made.metadata_props.update(node.metadata_props)
    if len(added) > 1:
        found = reshaped(found, [0] * len(kept) + [size[letter] for letter in added])
    graph.replace_value(node.outputs[0], turned(found, each + kept + added, product.out))
    body.remove(node, safe=True)  # whose name the product has

"""Along which axes products are added up, in operators that multiply and add: all of them as letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Dim

#: Operators that `sum_of_products` knows.
ADD_PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})


@dataclass(frozen=True)
class SumOfProducts:
    """Σ over the letters that are not in `out` of the products of operands.

    Attributes:
        parts: the letters of each operand, in order, and `...` for axes along which nothing is added up.
        shapes: of the operands, as far as they are known.
    """

    parts: tuple[str, ...]
    out: str
    shapes: tuple[Sequence[Dim] | None, ...]

    def adds_open(self, is_open: Callable[[Dim], bool]) -> bool | None:
        """Whether it adds up as many products as a size that is not fixed; None if that cannot be told.

        Args:
            is_open: whether a size is known not to be fixed.
        """
        added = {letter for letter in "".join(self.parts) if letter.isalpha() and letter not in self.out}
        answers = [self._answer(letter, is_open) for letter in added]
        return True if True in answers else None if None in answers else False

    def has_open_rows(self, operand: int) -> bool:
        """Whether an operand is the factor of more sums, where a size that is not fixed is larger."""
        others = "".join(part for i, part in enumerate(self.parts) if i != operand)
        rows = [each for each in self.parts[operand] if each.isalpha() and each in self.out and each not in others]
        return any(not isinstance(self._size(operand, letter), int) for letter in rows)

    def _answer(self, letter: str, is_open: Callable[[Dim], bool]) -> bool | None:
        sizes = [self._size(i, letter) for i, part in enumerate(self.parts) if letter in part]
        return False if any(isinstance(size, int) for size in sizes) else True if any(map(is_open, sizes)) else None

    def _size(self, operand: int, letter: str) -> Dim:
        shape, (left, dots, right) = self.shapes[operand], self.parts[operand].partition("...")
        if shape is None:
            return None
        axis = left.find(letter) if not dots or letter in left else right.find(letter) - len(right)
        return shape[axis] if -len(shape) <= axis < len(shape) else None


def sum_of_products(node: ir.Node, shapes: Sequence[Sequence[Dim] | None]) -> SumOfProducts:
    """What a node of `ADD_PRODUCTS` adds up, of its factors' shapes."""
    if node.op_type == "Einsum":
        operands, arrow, out = graph.attribute_string(node, "equation", "").replace(" ", "").partition("->")
        out = out if arrow else "".join(each for each in operands if each.isalpha() and operands.count(each) == 1)
        return SumOfProducts(tuple(operands.split(",")), out, tuple(shapes))
    a = "ki" if node.op_type == "Gemm" and graph.attribute_int(node, "transA", 0) else "ik"
    b = "jk" if node.op_type == "Gemm" and graph.attribute_int(node, "transB", 0) else "kj"
    if node.op_type == "Gemm":
        return SumOfProducts((a, b), "ij", tuple(shapes[:2]))
    ranks = [None if shape is None else len(shape) for shape in shapes]
    return SumOfProducts(("k" if ranks[0] == 1 else "...ik", "k" if ranks[1] == 1 else "...kj"), "ij", tuple(shapes))

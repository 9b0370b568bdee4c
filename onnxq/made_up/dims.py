"""The free dimensions of a model's inputs: which symbols there are, and what sums of them come to."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from onnxq.runtime.session import Input

Sizes = Mapping[str, int]


def _or_zero(divide: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """A division that gives 0 where nothing can be divided by."""
    return lambda a, b: divide(a, b) if b else 0


_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _or_zero(operator.floordiv),
    ast.Div: _or_zero(operator.floordiv),
    ast.Mod: _or_zero(operator.mod),
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "max": max,
    "min": min,
    "floor": int,
    "floordiv": _or_zero(operator.floordiv),
    "ceildiv": _or_zero(lambda a, b: -(-a // b)),
    "mod": _or_zero(operator.mod),
}
#: No dimension is longer.
LARGEST = 1 << 62
#: Names that exporters give to a batch, and some of them to any dimension: they count where they come first.
_BATCH, _ANY = ("n", "bs", "b", "none"), ("unk__", "-1")


class Dims:
    """The dimensions of `inputs` that a caller chooses.

    Exporters write those that follow from others as sums of their names (`past_sequence_length + sequence_length`); a
    `total` is the past and the present even where it has a name of its own.

    Attributes:
        symbols: what is to be chosen, in the order in which they first appear. Dimensions without a name have one here.
        batch, past: those of them that count samples, and steps that the model already took.
    """

    def __init__(self, inputs: Sequence[Input]) -> None:
        texts = [symbol_of(i, axis) for i in inputs for axis, dim in enumerate(i.shape or ()) if is_free(dim)]
        alone = {text for text in texts if text.isidentifier()}
        self._parsed = {text: _parse(text, alone) for text in texts}
        names = (name for text in texts for name in _names(self._parsed[text], text))
        symbols = list(dict.fromkeys(names))
        self.past = [s for s in symbols if _is_past(s)]
        sums = [s for s in symbols if "total" in s.lower()] if self.past else []
        self._totals = {s: (self.past[0], one) for s in sums if (one := _present(symbols, sums)) is not None}
        self.symbols = [s for s in symbols if s not in self._totals]
        first = {symbol_of(i, 0) for i in inputs if i.shape and is_free(i.shape[0])}
        numbered = _numbered_batches(inputs)
        self.batch = [
            s for s in self.symbols if s not in self.past and (_is_batch(s, comes_first=s in first) or s in numbered)
        ]

    @property
    def rest(self) -> list[str]:
        """Lengths, heights and widths."""
        return [s for s in self.symbols if s not in self.past and s not in self.batch]

    def shape(self, i: Input, sizes: Sizes) -> tuple[int, ...]:
        """The shape of an input where each symbol has a size; a size below zero becomes zero."""
        return tuple(max(0, self.size(i, axis, sizes)) for axis in range(len(i.shape or ())))

    def size(self, i: Input, axis: int, sizes: Sizes) -> int:
        dim = (i.shape or ())[axis]
        if not is_free(dim):
            return int(dim or 0)
        text = symbol_of(i, axis)
        tree = self._parsed[text]
        return self._value(text, sizes) if tree is None else self._evaluate(tree, sizes)

    def symbols_at(self, i: Input, axis: int) -> list[str]:
        """The symbols that a dimension depends on; none if it is fixed."""
        if not is_free((i.shape or ())[axis]):
            return []
        text = symbol_of(i, axis)
        names = _names(self._parsed[text], text)
        return [part for name in names for part in self._totals.get(name, (name,))]

    def _value(self, name: str, sizes: Sizes) -> int:
        parts = self._totals.get(name, (name,))
        return sum(sizes[part] for part in parts)

    def _evaluate(self, tree: ast.expr, sizes: Sizes) -> int:
        """Within ±`LARGEST`: powers of powers would take longer than anybody waits."""
        return max(-LARGEST, min(LARGEST, self._unbounded(tree, sizes)))

    def _unbounded(self, tree: ast.expr, sizes: Sizes) -> int:
        if isinstance(tree, ast.Constant):
            return int(tree.value)  # type: ignore[arg-type]
        if isinstance(tree, ast.Name):
            return self._value(tree.id, sizes)
        if isinstance(tree, ast.UnaryOp):
            return -self._evaluate(tree.operand, sizes)
        if isinstance(tree, ast.Call):
            return _FUNCTIONS[_function(tree)](*(self._evaluate(part, sizes) for part in tree.args))
        assert isinstance(tree, ast.BinOp)
        return _OPERATORS[type(tree.op)](self._evaluate(tree.left, sizes), self._evaluate(tree.right, sizes))


def is_free(dim: int | str | None) -> bool:
    return not isinstance(dim, int) or dim < 0


def symbol_of(i: Input, axis: int) -> str:
    """The name of a free dimension, or one made of the input's where it has none."""
    dim = (i.shape or ())[axis]
    return dim if isinstance(dim, str) and dim else f"{i.name}:{axis}"


def guesses(dims: Dims, typical: Sizes, tried: Sequence[int]) -> Iterator[dict[str, int]]:
    """Sizes to try: the typical ones, then one for all that are not batch or past, then one dimension for itself.

    Args:
        typical: for some of the symbols.
        tried: sizes for the rest, in this order.
    """
    batch, rest = dict.fromkeys(dims.batch, 1), dims.rest
    for cached in (0, 1, 4) if dims.past else (0,):
        yield {**batch, **dict.fromkeys(dims.past, cached), **dict.fromkeys(rest, tried[0]), **typical}
    for size, cached in itertools.product(tried, (0, 1) if dims.past else (0,)):
        yield {**batch, **dict.fromkeys(dims.past, cached), **dict.fromkeys(rest, size)}
    for symbol in rest:  # a time axis of 1, say, that the others do not share
        for size, one in itertools.product(tried, (1, 2, 3)):
            yield {**batch, **dict.fromkeys(dims.past, 1), **dict.fromkeys(rest, size), symbol: one}


def _parse(text: str, alone: set[str]) -> ast.expr | None:
    """The sum that a dimension's name is; None where it is only a name."""
    if text.isidentifier():
        return None
    if re.fullmatch(r"[\w.:/-]+", text) and not set(re.findall(r"[A-Za-z_]\w*", text)) <= alone:
        return None  # 'batch-size' is a name: nobody ever heard of 'batch'
    try:
        tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if _is_sum(tree) else None


def _is_sum(tree: ast.AST) -> bool:
    if isinstance(tree, ast.Constant):
        return isinstance(tree.value, int)
    if isinstance(tree, ast.Name):
        return True
    if isinstance(tree, ast.UnaryOp):
        return isinstance(tree.op, ast.USub) and _is_sum(tree.operand)
    if isinstance(tree, ast.BinOp):
        if isinstance(tree.op, ast.Pow) and not (
            isinstance(tree.right, ast.Constant) and tree.right.value in (1, 2, 3)
        ):
            return False
        return type(tree.op) in _OPERATORS and _is_sum(tree.left) and _is_sum(tree.right)
    if not isinstance(tree, ast.Call) or tree.keywords or _function(tree) not in _FUNCTIONS:
        return False
    return len(tree.args) == (1 if _function(tree) == "floor" else 2) and all(map(_is_sum, tree.args))


def _function(tree: ast.Call) -> str:
    return tree.func.id.lower() if isinstance(tree.func, ast.Name) else ""


def _names(tree: ast.expr | None, text: str) -> list[str]:
    if tree is None:
        return [text]
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]


def _is_past(symbol: str) -> bool:
    return any(word in symbol.lower() for word in ("past", "cache", "kv_len"))


def _is_batch(symbol: str, *, comes_first: bool) -> bool:
    low = symbol.lower()
    return "batch" in low or symbol.endswith(":0") or (comes_first and (low in _BATCH or low.startswith(_ANY)))


def _numbered_batches(inputs: Sequence[Input]) -> set[str]:
    """Batches among the names that torch gives to dimensions nobody named: `s0`, `s77`.

    One comes first in pictures, tokens or sounds, and every input of any size has it. Not the first of [rows,
    features], which may be steps, nor of [any, any, features], which recurrent models lay out both ways, unless there
    is an input of one number for each.
    """
    moving = [i for i in inputs if any(map(is_free, i.shape or ()))]
    everywhere = [{symbol_of(i, axis) for axis, dim in enumerate(i.shape or ()) if is_free(dim)} for i in moving]
    shared = set.intersection(*everywhere) if everywhere else set()
    several = [i for i in moving if len(i.shape or ()) > 1 and is_free((i.shape or ())[0])]
    each = {symbol_of(i, 0) for i in moving if len(i.shape or ()) == 1}
    found = {symbol_of(i, 0) for i in several if _tells_batch([is_free(dim) for dim in i.shape or ()])}
    found |= each & {symbol_of(i, 0) for i in several}
    return {s for s in shared & found if re.fullmatch(r"s\d+", s)}


def _tells_batch(free: Sequence[bool]) -> bool:
    """Whether the first dimension counts samples, by which of all are free."""
    return len(free) > 3 or (len(free) == 2 and free[1]) or (len(free) == 3 and free[2] and not free[1])


def _present(symbols: Sequence[str], sums: Sequence[str]) -> str | None:
    """The length that a total adds to the past: the first that is called a sequence, else the first there is."""
    lengths = [s for s in symbols if s not in sums and not _is_past(s) and not _is_batch(s, comes_first=True)]
    return next((s for s in lengths if "seq" in s.lower() and "enc" not in s.lower()), next(iter(lengths), None))

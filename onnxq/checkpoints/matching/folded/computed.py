"""Constants that an exporter computed from parameters: the model has no name of the checkpoint's for them.

    1. The weight of a product whose bias is called `in_proj_bias`: `in_proj_weight`, as torch calls both.
    2. What is made of another constant of the model, exactly: a state of zeros times a weight, plus its bias.
    3. What is read in the module of a tensor that goes nowhere, and like what can be made of that: 1 + the weight of a
       norm, a token for each sample, rows of a table of places.
    4. The same of single numbers, by the operator that made it, or that reads it: exp(logit_scale).

What looks like one of these, but not by that much, gets nothing, which `unmatched.py` tells.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.views import View, views
from onnxq.checkpoints.matching.names import MOST_LAST, Renaming, module_of_reader
from onnxq.checkpoints.matching.parameters import FEW, Kind, is_literal, kind_of
from onnxq.checkpoints.matching.put import LIKE
from onnxq.checkpoints.stored import real
from onnxq.errors import BadModel, listed
from onnxq.model import graph
from onnxq.model.weights import Weight, weights_of
from onnxq.quality import sqnr

#: SQNR in dB of what is computed from the same numbers, by type: rounding is all that differs.
EXACT = {ir.DataType.FLOAT16: 60.0, ir.DataType.BFLOAT16: 40.0}
EXACT_FLOAT = 100.0
#: Of what is made of a tensor that was looked for by its numbers, against how these differ; and of single numbers,
#: which are a parameter's that moved by a percent at most.
LIKE_MADE, LIKE_SINGLE = 20.0, 40.0
#: What a factor for all numbers may explain, in dB, of what they differ by.
MEASURE = 3.0
#: What is done to parameters before they are read: norms of Gemma, scales of CLIP, decays of Mamba.
_MADE: dict[str, Callable[[NDArray], NDArray]] = {
    "{}": lambda p: p,
    "1 + {}": lambda p: 1 + p,
    "1 - {}": lambda p: 1 - p,
    "exp({})": np.exp,
    "-exp({})": lambda p: -np.exp(p),
}
#: Tensors that a sentence lists.
MOST_TOLD = 4
#: Tensors around a constant of which numbers are looked at.
MOST_AROUND = 100
#: Other constants that one is compared with.
MOST_OTHERS = 1000
#: Parts of a weight that torch makes of several: v is like it, and g / |v| times something else.
_IN_PARTS = re.compile(r"(^|\.)(weight_([guv]|orig)|parametrizations\..+)$")
#: Which of them it is, by the operator that made the constant; and operators that only move numbers.
_BY_NAME = {"add": "1 + {}", "exp": "exp({})", "neg": "-exp({})"}
_MOVES = {"embedding", "expand", "unsqueeze", "squeeze", "view", "reshape", "permute", "transpose", "t", "repeat", "slice"}
_MOVES |= {"clone", "flatten", "select", "index", "val", "index_select", "contiguous", "to", "_to_copy", "cast", "tile"}


@dataclass
class Computed:
    """What was computed again.

    Attributes:
        sources: the tensor of the checkpoint that each constant was made of, by name.
        told: how, in words.
        misfits: sentences about constants of which nothing tells how.
    """

    sources: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)


class _Work:
    """Constants that have their old numbers, and tensors that go nowhere."""

    def __init__(
        self,
        model: ir.Model,
        tensors: Mapping[str, Any],
        own: Mapping[str, ir.TensorProtocol],
        given: Mapping[str, str],
        apart: Collection[str],
        renamed: Renaming,
        is_checked: bool,
    ) -> None:
        self.tensors, self.own, self.renamed, self.done = tensors, own, renamed, Computed()
        self.is_checked = is_checked
        values = {name: value for owner in graph.graphs(model) for name, value in owner.initializers.items()}
        self.given = {name: (values[name], source) for name, source in given.items() if name in own}
        self.targets = {
            name: value
            for name, value in values.items()
            if (tensor := graph.constant(value)) is not None
            and tensor.dtype in graph.FLOATS
            and tensor.size
            and own.get(name, tensor) is tensor
            and renamed(name) not in tensors
            and value.uses()
        }
        taken = {*given.values(), *apart, *map(renamed, values)}
        spare = (name for name in tensors if name not in taken and not _IN_PARTS.search(name))
        self.spare = dict.fromkeys(name for name in spare if _is_floats(tensors[name]))
        self._inside: dict[str, list[list[str]]] = {}
        self._by_place: dict[str, list[str]] = {}
        for name in self.spare:
            words = name.split(".")
            for i in range(min(len(words), MOST_LAST)):
                self._by_place.setdefault(".".join(words[:i]), []).append(name)

    def inside(self, module: str) -> list[list[str]]:
        """Tensors of a module, those that lie less deep first."""
        if module not in self._inside:
            depths: dict[str, int] = {}
            for place in self.renamed.modules(module):
                for name in self._by_place.get(place, ()):
                    rest = name.removeprefix(f"{place}." if place else "")
                    if self.renamed(f"{module}.{rest}" if module else rest) == name:
                        depths[name] = max(depths.get(name, 0), rest.count(".") + 1)
            by_depth: dict[int, list[str]] = {}
            for name, depth in depths.items():
                by_depth.setdefault(depth, []).append(name)
            self._inside[module] = [by_depth[depth] for depth in sorted(by_depth)]
        return self._inside[module]

    def modules(self, value: ir.Value) -> set[str]:
        """Those that read a constant."""
        return {module_of_reader(use.node) for use in value.uses()}

    def read(self, source: str) -> NDArray[np.float32]:
        return real(source, self.tensors[source]).astype(np.float32)

    def give(self, name: str, source: str, made: NDArray, how: str) -> None:
        """Let a constant have other numbers.

        Raises:
            BadModel: they are too large for its type.
        """
        value = self.targets.pop(name)
        assert value.const_value is not None
        dtype = value.const_value.dtype
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(made.astype(dtype.numpy()).reshape(value.const_value.shape.numpy()))
        if not np.isfinite(numbers.astype(np.float32)).all():
            raise BadModel(f"what the checkpoint makes of '{name}' is too large for {dtype.name.lower()}")
        value.const_value = ir.tensor(numbers, name=name)
        self.done.sources[name] = source
        self.done.told.append(f"{name} = {how.format(source)}")
        self.spare.pop(source, None)


def compute(
    model: ir.Model,
    tensors: Mapping[str, Any],
    own: Mapping[str, ir.TensorProtocol],
    given: Mapping[str, str],
    apart: Collection[str],
    renamed: Renaming,
    *,
    is_checked: bool = True,
) -> Computed:
    """Give such constants the numbers that the checkpoint makes of them.

    Args:
        own: the constants of floats in the file.
        given: those of them that have other numbers, and the tensors that these are.
        apart: tensors that are accounted for otherwise.
        renamed: what a name of the model is in the checkpoint.
        is_checked: whether numbers have to be alike where only modules tell.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    work = _Work(model, tensors, own, given, apart, renamed, is_checked)
    _by_biases(work)
    _by_others(work)
    _inverses(work)
    _by_modules(work)
    return work.done


def _by_biases(work: _Work) -> None:
    for name, value in list(work.targets.items()):
        weights = [w for use in value.uses() for w in _products(use.node, value)]
        sources = {_beside_bias(work, weight.node) for weight in weights}
        source = sources.pop() if len(sources) == 1 else ""
        if source in work.spare:
            p = work.read(source)
            made = p.T if weights[0].role.contraction == 0 else p
            if made.shape == weights[0].shape:
                work.give(name, source, made, "{}")


def _beside_bias(work: _Work, node: ir.Node) -> str:
    """The weight that a product's bias tells; "" if it tells none."""
    bias = _bias_of(node)
    first, _, last = work.renamed((bias.name if bias is not None else "") or "").rpartition(".")
    return f"{first}.{last.replace('bias', 'weight')}" if first and "bias" in last and last != "bias" else ""


def _bias_of(node: ir.Node) -> ir.Value | None:
    if graph.is_op(node, "Gemm"):
        return node.inputs[2] if len(node.inputs) > 2 else None
    added = graph.added_vector(node)
    return None if added is None else added[1]


def _by_others(work: _Work) -> None:
    """Constants that are made of others which have new numbers: which one, the old numbers of both tell; none where
    several that were equal are so no more."""
    others: _Others | None = None  # which takes reading all of them
    for name, value in list(work.targets.items()):
        tensor = value.const_value
        assert tensor is not None
        if tensor.size < FEW or _is_product(value) or is_literal(name):
            continue
        c = tensor.numpy().astype(np.float32)
        if not np.isfinite(c).all() or not np.ptp(c):
            continue
        others = others or _Others(work)
        found: list[tuple[str, NDArray, str]] = []
        for other, source in others.of(c, EXACT.get(tensor.dtype, EXACT_FLOAT)):
            old = work.own[other.name or ""].numpy().astype(np.float32)
            for how, function, view in _ways(c, old):
                if sqnr(c, view(function(old))) >= EXACT.get(tensor.dtype, EXACT_FLOAT):
                    assert other.const_value is not None
                    found.append((source, view(function(other.const_value.numpy().astype(np.float32))), how))
                    break
        if found and all(np.array_equal(made, found[0][1]) for _, made, _ in found[1:]):
            work.give(name, *found[0])
        elif found:
            told = listed(list(dict.fromkeys(how.format(source) for source, _, how in found)), MOST_TOLD)
            work.done.misfits.append(f"'{name}' is as well made of one as of another of {told}")


def _inverses(work: _Work) -> None:
    """Single numbers that are the inverse of one which their module reads, too: of the power of a GeM pooling."""
    for name, value in list(work.targets.items()):
        c = value.const_value
        assert c is not None
        if c.size != 1 or is_literal(name):
            continue
        for other, source in work.given.values():
            old, new = work.own[other.name or ""], other.const_value
            if old.size != 1 or new is None or not work.modules(value) & work.modules(other):
                continue
            x, near = float(old.numpy().item()), 10 ** (-EXACT.get(c.dtype, EXACT_FLOAT) / 20)
            if abs(abs(x) - 1) > near and abs(float(c.numpy().item()) * x - 1) <= near:
                with np.errstate(divide="ignore"):
                    work.give(name, source, 1 / new.numpy().astype(np.float32), "1 / {}")
                break


class _Others:
    """Constants that have new numbers, by the least and the largest of what can be made of their old ones."""

    def __init__(self, work: _Work) -> None:
        olds = [(each, work.own[each[0].name or ""]) for each in work.given.values()]
        self._given = [(each, old) for each, old in olds if old.size > 1 and old.dtype in graph.FLOATS]
        ends = np.empty((len(self._given), len(_MADE), 2))
        for i, (_, old) in enumerate(self._given):
            p = old.numpy()
            both = np.array([p.min(), p.max()]).astype(np.float32)
            with np.errstate(over="ignore"):
                ends[i] = [np.sort(function(both)) for function in _MADE.values()]  # all of them rise, or fall
        self._lows, self._highs = ends[..., 0], ends[..., 1]
        self._have_rows = np.array([len(_sizes(old)) == 2 for _, old in self._given], bool)

    def of(self, c: NDArray, decibels: float) -> Iterator[tuple[ir.Value, str]]:
        """Those that may be as like a constant as this, whole ones first."""
        near = float(np.linalg.norm(c.astype(np.float64))) * 10 ** (-decibels / 20)
        low, high = float(c.min()) - self._lows, self._highs - float(c.max())  # inf and nan, where numbers are none
        is_within = ((low >= -near) & (high >= -near)).any(1)
        is_equal = ((np.abs(low) <= near) & (np.abs(high) <= near)).any(1)
        with_rows = is_within & self._have_rows & ~is_equal
        found = (self._given[i] for i in [*np.flatnonzero(is_equal), *np.flatnonzero(with_rows)])
        yield from itertools.islice((each for each, old in found if _may_lie(c.shape, old)), MOST_OTHERS)


def _may_lie(shape: tuple[int, ...], old: ir.TensorProtocol) -> bool:
    """Whether an array has a place in another one, as far as sizes tell."""
    sizes = _sizes(old)
    most = sizes if len(sizes) != 2 else sizes[1:]
    return bool(sizes) and old.dtype in graph.FLOATS and all(size in shape for size in most)


def _sizes(tensor: ir.TensorProtocol) -> list[int]:
    return [size for size in tensor.shape.numpy() if size != 1]


def _ways(c: NDArray, p: NDArray) -> Iterator[tuple[str, Callable[[NDArray], NDArray], View]]:
    for how, function in _MADE.items():
        with np.errstate(over="ignore"):
            made = function(p)
        if np.isfinite(made).all():
            yield from ((how, function, view) for view in views(c, made))


def _by_modules(work: _Work) -> None:
    """Constants that are alone like a tensor of the module that reads them, the most like first."""
    found: list[tuple[float, str, str, NDArray, str]] = []
    for name, value in list(work.targets.items()):
        if "." in name and "/" not in name:  # a module's own, of which the checkpoint has none of this name
            continue
        around = [_around(work, module) for module in work.modules(value)]
        for source in around[0] if all(each == around[0] for each in around) else ():  # else equal ones of several
            found += _fits(work, name, value, source)
    found.sort(key=lambda each: -each[0])
    rivals: dict[tuple[int, str], list[tuple[float, str, str]]] = {}  # the most like last
    for likeness, name, source, _, _ in reversed(found):
        rivals.setdefault((0, name), []).append((likeness, name, source))
        rivals.setdefault((1, source), []).append((likeness, name, source))
    for likeness, name, source, made, how in found:
        if name in work.targets and source in work.spare:
            others = [_best_other(work, rivals[each], name, source) for each in ((0, name), (1, source))]
            best = max(others)
            if best == -np.inf or (best < np.inf and best <= likeness - LIKE) or not work.is_checked:
                work.give(name, source, made, how)


def _best_other(work: _Work, rivals: list[tuple[float, str, str]], name: str, source: str) -> float:
    """How like the best pair is that is left of these, but for this one."""
    kept: list[tuple[float, str, str]] = []
    found = -np.inf
    while rivals and found == -np.inf:
        each = rivals.pop()
        if each[1] in work.targets and each[2] in work.spare:
            kept.append(each)
            found = each[0] if each[1:] != (name, source) else found
    rivals += reversed(kept)
    return found


def _around(work: _Work, module: str) -> list[str]:
    """Tensors that go nowhere of a module, or of those in it: the nearest ones; none where they are so many that
    numbers would not tell which."""
    found, depths = list[str](), 0
    for sources in work.inside(module):
        left = [source for source in sources if source in work.spare]
        found += left
        depths += bool(left)
        if depths == 2:
            break
    return found if len(found) <= MOST_AROUND else []


def _fits(work: _Work, name: str, value: ir.Value, source: str) -> Iterator[tuple[float, str, str, NDArray, str]]:
    """(how like it is, the constant, the tensor, what is made of it, how) where that is like the constant in one way."""
    tensor, shape = value.const_value, work.tensors[source].shape
    assert tensor is not None
    is_slope = any(graph.is_op(use.node, "PRelu") and use.idx == 1 for use in value.uses())
    if (tensor.size == 1) != (work.tensors[source].size == 1) or (is_literal(name) and tensor.size == 1 > is_slope):
        return
    if _is_product(value) or (tensor.size > 1 and kind_of(value) is Kind.FIXED and not is_slope):
        return
    c = tensor.numpy().astype(np.float32)
    if not np.isfinite(c).all() or (c.size > 1 and not _may_lie(c.shape, ir.tensor(np.empty(shape, np.float32)))):
        return
    p, named = work.read(source), ("{}",) if is_slope else _named(name)
    is_looked_up = _operator(name) == "embedding"  # all of a table, as places are
    is_told = is_slope or is_looked_up or (not work.is_checked and len(named) == 1)
    tried = []
    for how, function, view in _ways(c, p):
        if how in named:
            made = view(function(p))
            likeness = np.inf if is_told and c.size % p.size == 0 else _likeness(c, made)
            tried.append((likeness, made, how))
    tried.sort(key=lambda each: -each[0])
    if tried and tried[0][0] >= LIKE_MADE and all(x <= tried[0][0] - LIKE for x, _, _ in tried[1:]):
        yield tried[0][0], name, source, tried[0][1], tried[0][2]


def _likeness(c: NDArray, made: NDArray) -> float:
    """How like new numbers are to old ones, in dB of how these differ among each other: that all are near 1 tells
    nothing. Nothing is like it, either, that would be far more so in another measure: the model has done more to it.

    A single number is like another one that is as near as numbers that moved a little, unless both are 0 or 1, which
    most functions make of 0 or of 1.
    """
    if c.size == 1 or not np.ptp(c):
        is_plain = c.size > 1 or abs(float(c.ravel()[0])) in (0.0, 1.0)
        return -np.inf if is_plain else sqnr(c, made) - (LIKE_SINGLE - LIKE_MADE)
    x, y = (each.astype(np.float64) - each.mean(dtype=np.float64) for each in (c, made))
    likeness = sqnr(x, made.astype(np.float64) - c.mean(dtype=np.float64))
    power = float((y**2).sum())
    fitted = sqnr(x, y * (float((x * y).sum()) / power)) if power else -np.inf
    return likeness if fitted <= likeness + MEASURE else -np.inf


def _operator(name: str) -> str:
    """What made a constant, where torch's newer exporter calls it by that."""
    return name.rpartition(".")[2].rstrip("0123456789_")


def _named(name: str) -> tuple[str, ...]:
    """Ways in which a constant may be made of a parameter, by its name: the older exporter tells nothing by that."""
    operator = _operator(name)
    if "::" in name or name.startswith("/") or "." in name:
        return tuple(_MADE)
    return ("{}",) if operator in _MOVES else (_BY_NAME[operator],) if operator in _BY_NAME else ()


def _products(node: ir.Node, value: ir.Value) -> list[Weight]:
    if not graph.is_op(node, "MatMul", "Gemm"):
        return []
    return [w for w in weights_of(node, least=1) if w.value is value and w.role.index == 1]


def _is_product(value: ir.Value) -> bool:
    return any(_products(use.node, value) for use in value.uses())


def _is_floats(found: Any) -> bool:
    return isinstance(found, np.ndarray) and found.dtype.kind in "fV" and bool(found.size)

"""Constants that an exporter computed from parameters: the model has no name of the checkpoint's for them.

    1. The weight of a product whose bias is called `in_proj_bias`: `in_proj_weight`, as torch calls both; and what is
       behind the InstanceNormalization that a GroupNorm is.
    2. What the exporter says was made of a tensor that goes nowhere, all of it, as it is or by one function of each
       number: a token for each sample, sigmoid of a gate.
    3. What is made of another constant of the model, exactly: a state of zeros times a weight, plus its bias.
    4. What is read in the module of a tensor that goes nowhere, and like what can be made of that, in the one way that
       the operator in its name allows: 1 + the weight of a norm, a token for each sample, rows of a table of places,
       exp(logit_scale).

What looks like one of these, but not by that much, gets nothing, which `unmatched.py` and `doubts.py` tell: equal
numbers, as before training, never tell what was made of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.others import by_others, inverses
from onnxq.checkpoints.matching.folded.sources import WHOLE, Made
from onnxq.checkpoints.matching.folded.views import views
from onnxq.checkpoints.matching.folded.work import MADE, Computed, Work, is_product, may_lie, products, ways
from onnxq.checkpoints.matching.names import module_of_reader
from onnxq.checkpoints.matching.parameters import Kind, is_grid, is_literal, kind_of
from onnxq.checkpoints.matching.put import LIKE, sizes
from onnxq.model import graph
from onnxq.model.origin import call_of
from onnxq.quality import sqnr

#: Of what is made of a tensor that was looked for by its numbers, against how these differ; and of single numbers,
#: which are a parameter's that moved by a percent at most.
LIKE_MADE, LIKE_SINGLE = 20.0, 40.0
#: What a factor for all numbers may explain, in dB, of what they differ by.
MEASURE = 3.0
#: Tensors around a constant of which numbers are looked at.
MOST_AROUND = 100
#: Which of them it is, by the operator that made the constant; and operators that only move numbers.
_BY_NAME = {"add": "1 + {}", "exp": "exp({})", "neg": "-exp({})"}
_MOVES = {"embedding", "expand", "repeat", "tile", "unsqueeze", "squeeze", "view", "reshape", "flatten", "permute"}
_MOVES |= {"transpose", "t", "slice", "select", "index", "index_select", "clone", "contiguous", "to", "_to_copy", "val"}
#: What torch's operators make of each number, the last of them first; in words.
_MORE: dict[str, Callable[[NDArray], NDArray]] = {"sigmoid({})": lambda p: 1 / (1 + np.exp(-p)), "tanh({})": np.tanh}
_FUNCTIONS = {(): "{}", ("exp",): "exp({})", ("neg", "exp"): "-exp({})"}
_FUNCTIONS |= {("sigmoid",): "sigmoid({})", ("tanh",): "tanh({})"}
_REPEATS = {"expand", "repeat", "tile", "expand_as"}


def compute(work: Work) -> Computed:
    """Give such constants the numbers that the checkpoint makes of them.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    _by_biases(work)
    _by_group_norms(work)
    _by_sources(work)
    by_others(work)
    inverses(work)
    _by_modules(work)
    return work.done


def _by_biases(work: Work) -> None:
    for name, value in list(work.targets.items()):
        weights = [w for use in value.uses() for w in products(use.node, value)]
        sources = {_beside_bias(work, weight.node) for weight in weights}
        source = sources.pop() if len(sources) == 1 else ""
        said = work.sources.of(value)
        if source in work.spare and (said is None or (said.is_whole and said.is_right)):
            p = work.read(source)
            made = p.T if weights[0].role.contraction == 0 else p
            if made.shape == weights[0].shape:
                work.give(name, source, made, "{}")


def _beside_bias(work: Work, node: ir.Node) -> str:
    """The weight that a product's bias tells; "" if it tells none."""
    bias = _bias_of(node)
    first, _, last = work.renamed((bias.name if bias is not None else "") or "").rpartition(".")
    return f"{first}.{last.replace('bias', 'weight')}" if first and "bias" in last and last != "bias" else ""


def _bias_of(node: ir.Node) -> ir.Value | None:
    if graph.is_op(node, "Gemm"):
        return node.inputs[2] if len(node.inputs) > 2 else None
    added = graph.added_vector(node)
    return None if added is None else added[1]


def _by_group_norms(work: Work) -> None:
    """What torch's newer exporter has put into the shape of an image's channels."""
    for name, value in list(work.targets.items()):
        node, *others = (use.node for use in value.uses())
        part = _part_of_group_norm(node) if not others and _operator(name) == "val" else ""
        source = work.renamed(f"{module_of_reader(node)}.{part}")
        tensor = graph.constant(value)
        if part and source in work.spare and tensor is not None and work.tensors[source].size == tensor.size:
            work.give(name, source, work.read(source), "{}")


def _part_of_group_norm(node: ir.Node) -> str:
    """Which one a node behind the norm of groups of channels reads; "" if it is none."""
    makers = [maker for value in node.inputs if value is not None and (maker := value.producer()) is not None]
    if graph.is_op(node, "Add"):
        return "bias" if any(_part_of_group_norm(maker) == "weight" for maker in makers) else ""
    if not graph.is_op(node, "Mul"):
        return ""
    shaped = [maker.inputs[0].producer() for maker in makers if graph.is_op(maker, "Reshape") and maker.inputs[0]]
    is_behind = any(graph.is_op(maker, "InstanceNormalization") for maker in (*makers, *shaped))
    return "weight" if is_behind else ""


def _by_sources(work: Work) -> None:
    for name, value in list(work.targets.items()):
        made = work.sources.of(value)
        source = made.parameters[0] if made is not None and len(made.parameters) == 1 else ""
        if made is None or source not in work.spare:
            continue
        if is_product(value):
            _by_source_of_product(work, name, value, source, made)
            continue
        operators = tuple(each for each in made.operators if each not in WHOLE and each not in _REPEATS)
        how = _FUNCTIONS.get(operators)
        tensor, size = graph.constant(value), work.tensors[source].size
        assert tensor is not None
        is_repeated = tensor.size != size
        c = tensor.numpy().astype(np.float32)
        if how is None or tensor.size % size or (is_repeated and not np.ptp(c)):
            continue
        function = MADE[how] if how in MADE else _MORE[how]
        p = function(work.read(source))
        if not is_repeated:
            laid = made.laid(p, c.shape)
            found = [] if laid is None else [laid]
        else:
            found = [] if made.turns else [view(p) for view in views(c, p, is_in_order=True)]
        if len(found) == 1:
            work.give(name, source, found[0], how)


def _by_source_of_product(work: Work, name: str, value: ir.Value, source: str, made: Made) -> None:
    """A weight of products with a name of its own; squares where it was turned once, by `linear` or before another."""
    weights = [w for use in value.uses() for w in products(use.node, value)]
    is_turned = {"linear." in call_of(w.node) for w in weights} == {not made.operators} and len(made.operators) < 2
    p, (n, k) = work.read(source), sizes(weights[0])
    is_one = len({w.role.contraction for w in weights}) == 1
    is_known = made.is_whole and made.is_right and is_one and (n != k or is_turned)
    if is_known and p.shape == (n, k) and not source.endswith(".weight"):
        work.give(name, source, p.T if weights[0].role.contraction == 0 else p, "{}")


def _by_modules(work: Work) -> None:
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


def _best_other(work: Work, rivals: list[tuple[float, str, str]], name: str, source: str) -> float:
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


def _around(work: Work, module: str) -> list[str]:
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


def _fits(work: Work, name: str, value: ir.Value, source: str) -> Iterator[tuple[float, str, str, NDArray, str]]:
    """(how like it is, the constant, the tensor, what is made of it, how) where that is like it in one way."""
    tensor, shape = value.const_value, work.tensors[source].shape
    assert tensor is not None
    is_slope = any(graph.is_op(use.node, "PRelu") and use.idx == 1 for use in value.uses())
    if (tensor.size == 1) != (work.tensors[source].size == 1) or (is_literal(name) and tensor.size == 1 > is_slope):
        return
    is_fixed = tensor.size > 1 and kind_of(value) is Kind.FIXED and not is_grid(tensor.numpy())  # these may be trained
    if is_product(value) or (is_fixed and not is_slope):
        return
    c = tensor.numpy().astype(np.float32)
    if not np.isfinite(c).all() or (c.size > 1 and not may_lie(c.shape, ir.tensor(np.empty(shape, np.float32)))):
        return
    if not np.isfinite(work.tensors[source].astype(np.float32)).all():
        return
    p, named = work.read(source), ("{}",) if is_slope else _named(name)
    is_looked_up = _operator(name) == "embedding"  # all of a table, as places are
    is_plain = _is_plain(work.sources.of(value))
    is_told = is_slope or (is_plain and (is_looked_up or (not work.is_checked and len(named) == 1)))
    tried = []
    for how, function, view in ways(c, p):
        if how in named:
            made = view(function(p))
            likeness = np.inf if is_told and c.size % p.size == 0 else _likeness(c, made)
            tried.append((likeness, made, how))
    tried.sort(key=lambda each: -each[0])
    if tried and tried[0][0] >= LIKE_MADE and all(x <= tried[0][0] - LIKE for x, _, _ in tried[1:]):
        yield tried[0][0], name, source, tried[0][1], tried[0][2]


def _is_plain(made: Made | None) -> bool:
    """Whether a constant was made by the operator that it is called by, and nothing else but a move in order."""
    if made is None:
        return True
    others = made.operators[made.is_last :]
    return not made.turns and dataclasses.replace(made, operators=others).is_moved


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
        return tuple(MADE)
    return ("{}",) if operator in _MOVES else (_BY_NAME[operator],) if operator in _BY_NAME else ()

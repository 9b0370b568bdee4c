"""What tells that a model holds old numbers of a checkpoint's parameters in a form that nobody has understood.

1. A constant that has its old numbers is computed with one that has new ones, before anything that is not constant.
2. A tensor goes nowhere, and its module reads a constant that has its old numbers.
3. A tensor goes nowhere, and its module reads what was given such a tensor of another module: exporters keep equal
   constants once.
4. A constant that has its old numbers was computed from a tensor that has others, as torch's newer exporter says. What
   the older one computed, it does not say: what may be is noted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.checkpoints.matching.folded.sources import Made, Sources
from onnxq.checkpoints.matching.folded.views import views
from onnxq.checkpoints.matching.folded.work import EXACT, EXACT_FLOAT
from onnxq.checkpoints.matching.match import Match
from onnxq.checkpoints.matching.names import Renaming, module_of_reader
from onnxq.checkpoints.matching.parameters import FEW, Kind, is_literal, is_of_buffers, is_of_older_exporter, kind_of
from onnxq.checkpoints.stored import key
from onnxq.errors import listed
from onnxq.model import graph
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import weights_of
from onnxq.quality import sqnr

#: Names that a sentence lists.
MOST = 4
#: Of so many numbers mixtures are made, by single ones.
FEW_OF_TABLES = 64


def mixed(model: ir.Model, own: Mapping[str, ir.TensorProtocol]) -> list[str]:
    """Sentences about constants that have their old numbers and are computed with others that have new ones.

    Args:
        own: the constants of floats in the file.
    """
    olds: dict[ir.Value, set[str]] = {}
    news: dict[ir.Value, set[str]] = {}
    for owner in graph.graphs(model):
        for name, value in owner.initializers.items():
            if name in own and value.const_value is not None and value.const_value.dtype in graph.FLOATS:
                is_old = value.const_value is own[name]
                olds[value] = {name} if is_old and _is_parameter(value) else set()
                news[value] = set() if is_old else {name}
    found: dict[str, str] = {}
    for node in graph.nodes(model):
        read = [value for value in node.inputs if value is not None]
        if not read or not all(value in olds or graph.constant(value) is not None for value in read):
            continue
        old, new = (set[str]().union(*(table.get(value, set()) for value in read)) for table in (olds, news))
        if old and new:
            found |= {name: min(new) for name in old if name not in found}
        olds |= dict.fromkeys(node.outputs, old)
        news |= dict.fromkeys(node.outputs, new)
    return [f"'{name}' gets nothing, and is computed with '{other}', which does" for name, other in found.items()]


def _is_parameter(value: ir.Value) -> bool:
    """Whether it may be one, but for weights of products, which are matched later."""
    tensor = graph.constant(value)
    if tensor is None or tensor.size < 2 or is_literal(value.name or ""):
        return False
    if any(w.value is value and w.role.index for use in value.uses() for w in weights_of(use.node, least=1)):
        return False
    return kind_of(value) is not Kind.FIXED if tensor.size >= FEW else bool(np.ptp(tensor.numpy()))


def held(
    values: Iterable[ir.Value],
    sources: Sources,
    tensors: Mapping[str, Any],
    own: Mapping[str, ir.TensorProtocol],
    match: Match,
) -> dict[str, list[ir.Value]]:
    """Constants that have old numbers of tensors, by a sentence about them.

    Args:
        values: those that have the numbers which they had in the file, floats or what was `chosen`.
        own: the constants of floats there.
        match: what of the checkpoint went where, or nowhere.
    """
    placed = {*match.unused, *match.constants, *(key(name, "weight") for name in match.prefixes.values())}
    made = [(value, found) for value in values if value.uses() and (found := sources.of(value)) is not None]
    by_tensor: dict[str, list[ir.Value]] = {}
    for value, found in made:
        for name in placed.intersection(found.parameters):
            if _has_others(name, value, found, sources, tensors, own):
                by_tensor.setdefault(name, []).append(value)
    how = {value: f" ({', '.join(dict.fromkeys(x.operators))})" if x.operators else "" for value, x in made}
    return {
        f"{listed([str(value.name) for value in of], MOST)} of the model, which the exporter computed from '{name}'"
        f"{how[of[0]]}, {'keeps its' if len(of) == 1 else 'keep their'} numbers; export the trained model": of
        for name, of in by_tensor.items()
    }


def chosen(model: ir.Model, sources: Sources) -> list[ir.Value]:
    """Truth values and whole numbers that were computed by an operator: which numbers are positive, or the largest."""
    values = [value for owner in graph.graphs(model) for value in owner.initializers.values()]
    constants = ((value, graph.constant(value), sources.of(value)) for value in values)
    return [
        value
        for value, tensor, made in constants
        if tensor is not None and tensor.dtype not in graph.FLOATS and made is not None and made.operators
    ]


def _has_others(
    name: str,
    value: ir.Value,
    made: Made,
    sources: Sources,
    tensors: Mapping[str, Any],
    own: Mapping[str, ir.TensorProtocol],
) -> bool:
    """Whether a tensor has other numbers than it had when a constant was computed from it."""
    given, tensor = tensors[name], graph.constant(value)
    if (
        not isinstance(given, np.ndarray)
        or given.dtype.kind not in "fV"
        or not given.size
        or tensor is None
        or not tensor.size
    ):
        return False
    given = given.astype(np.float32)
    old = next((own[each] for each in sources.renamed.here(name) if each in own), None)
    if old is not None and old.shape.numpy() == given.shape:
        return not np.array_equal(old.numpy().astype(np.float32), given)
    if name in sources.buffers or (name not in sources.parameters and is_of_buffers(given)):
        return False
    c = tensor.numpy().astype(np.float32)
    if not made.is_moved:
        return True
    is_there = any(sqnr(c, view(given)) >= EXACT.get(tensor.dtype, EXACT_FLOAT) for view in views(c, given))
    return not is_there and bool(np.ptp(np.concatenate([given.ravel(), c.ravel()])))


def perhaps(values: Iterable[ir.Value], tensors: Mapping[str, Any], unused: Iterable[str]) -> list[str]:
    """Sentences about tensors that go nowhere, of which torch's older exporter may have computed constants that keep
    their numbers: parts of tables, or rows by an index beside it, as shapes tell, which also others have.

    Args:
        values: those that have the numbers which they had in the file.
    """
    folded = [
        (str(name), _sizes(tensor.shape.numpy()))
        for value in values
        for name in (value.name, value.meta.get(ORIGIN))
        if value.uses() and is_of_older_exporter(str(name)) and (tensor := graph.constant(value)) is not None
    ]
    found, names = list[str](), [*unused] if folded else []
    indices: dict[str, list[list[int]]] = {}
    for name in names:
        index = tensors[name]
        if isinstance(index, np.ndarray) and index.dtype.kind in "iu":
            indices.setdefault(name.rpartition(".")[0], []).append(_sizes(index.shape))
    for name in names:
        table = tensors[name]
        if not isinstance(table, np.ndarray) or table.dtype.kind not in "fV" or len(sizes := _sizes(table.shape)) < 2:
            continue
        looked_up = [sorted([*rows, sizes[-1]]) for rows in indices.get(name.rpartition(".")[0], ())]
        parts = [each for each, own in folded if _may_be_part(own, sizes) or sorted(own) in looked_up]
        if parts and not is_of_buffers(table.astype(np.float32)):
            they = "keeps its numbers" if len(parts) == 1 else "keep their numbers"
            found.append(
                f"{listed(parts, MOST)} of the model {they}, and may be a part of '{name}', which goes nowhere"
            )
    return found[:MOST]


def _sizes(shape: Iterable[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _may_be_part(own: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether as many of the last axes are no longer, and the last is as long; of few numbers one may be."""
    if not own:
        return math.prod(sizes) <= FEW_OF_TABLES
    return own[-1] == sizes[-1] and all(x <= y for x, y in zip(reversed(own), reversed(sizes), strict=False))


class Modules:
    """The constants that each module of a model reads, by what it may be called in the checkpoint.

    Args:
        sources: the tensors that constants were given, by the constants' names.
    """

    def __init__(self, model: ir.Model, sources: Mapping[str, str], renamed: Renaming) -> None:
        self._given: dict[str, dict[str, str]] = {}
        self._read: dict[str, dict[str, None]] = {}
        for node in graph.nodes(model):
            module = module_of_reader(node)
            for value in node.inputs:
                name = "" if value is None else value.name or ""
                if not name or graph.constant(value) is None:
                    continue
                for place in renamed.modules(module):
                    self._read.setdefault(place, {})[name] = None
                    if name in sources:
                        self._given.setdefault(place, {})[name] = sources[name]

    def doubts(self, tensors: Mapping[str, Any], unused: Collection[str], old: Collection[str]) -> dict[str, str]:
        """Sentences about tensors that go nowhere, by name.

        Args:
            old: constants that have the numbers which they had in the file, and the checkpoint nothing like them.
        """
        return {name: told for name in unused if (told := self._doubt(name, tensors, old))}

    def _doubt(self, name: str, tensors: Mapping[str, Any], old: Collection[str]) -> str:
        found = tensors[name]
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fV" or not found.size:
            return ""
        module, _, word = name.partition(".parametrizations.")[0].rpartition(".")
        for constant, source in self._given.get(module, {}).items():
            same = source.rpartition(".")[2] == word and source != name
            if same and getattr(tensors.get(source), "shape", None) == found.shape:
                return f"'{name}' goes nowhere: the model has one constant, '{constant}', for that and '{source}'"
        left = [constant for constant in self._read.get(module, ()) if constant in old]
        if left and not is_of_buffers(found.astype(np.float32)):
            return f"'{name}' goes nowhere, and its module reads '{left[0]}', which gets nothing"
        return ""

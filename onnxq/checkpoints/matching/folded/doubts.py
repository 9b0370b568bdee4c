"""What tells that a model holds old numbers of a checkpoint's parameters in a form that nobody has understood.

1. A constant that has its old numbers is computed with one that has new ones, before anything that is not constant.
2. A tensor goes nowhere, and its module reads a constant that has its old numbers.
3. A tensor goes nowhere, and its module reads what was given such a tensor of another module: exporters keep equal
   constants once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.checkpoints.matching.names import Renaming, module_of_reader
from onnxq.checkpoints.matching.parameters import FEW, Kind, is_literal, is_of_buffers, kind_of
from onnxq.model import graph
from onnxq.model.weights import weights_of


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

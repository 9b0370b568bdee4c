"""What torch's newer exporter says in the metadata of kernels of what it took away: of the BatchNorm that it folded,
whose module and call they are then, with its ε as the last number or the last but a flag; and of biases of zeros.

Parameters (`p_`) and buffers (`b_`) that a call had as they are, and not computed of others, are what checkpoints hold.

Source: torch's native_functions.yaml (`batch_norm`, `_native_batch_norm_legit_no_training`), onnxscript's rewriter
rules for BatchNorms (fuse_batchnorm.py), which keep the metadata of what was replaced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onnxq.checkpoints.matching.names import Renaming
from onnxq.model import graph
from onnxq.model.origin import call_of, module_of

_CALL = re.compile(r"batch_norm[\w.]*\]\(args = \((?:[^()]*, )?([\d.e+-]+)(?:, (?:True|False))?\), kwargs")
_OF_PARAMETERS = re.compile(r"batch_norm[\w.]*\]\(args = \(%\w+, (?:%p_\w+|None), (?:%p_\w+|None), %b_\w+, %b_\w+,")
#: Of a result, which of one operator it is.
_NUMBER = re.compile(r"(_\d+)+$")
_WITH_BIAS = re.compile(r"(conv\w*|linear)[\w.]*\]\(args = \(%\w+, %p_\w+, %p_\w+[,)]|addmm[\w.]*\]\(args = \(%p_\w+, ")


def module(node: ir.Node) -> str:
    """The BatchNorm that a kernel has inside; "" if nothing says that it has one, of parameters as they are."""
    return module_of(node) if _OF_PARAMETERS.search(call_of(node)) else ""


def had_bias(node: ir.Node) -> bool:
    """Whether what is now this convolution or product had a parameter as its bias, for all that read it: a call of the
    same weight without one is the same node where the bias was zero."""
    return bool(_WITH_BIAS.search(call_of(node))) and not _is_of_several(node)


def _is_of_several(node: ir.Node) -> bool:
    """Whether something reads what it makes that its call did not, but another one of the same operator."""
    own = _result(node)
    for use in (use for value in node.outputs for use in value.uses()):
        passed = _PASSED.findall(call_of(use.node).partition("](")[2])
        there = {value.name for value in use.node.inputs if value is not None}
        others = (name for name in passed if operator(name) == operator(own) and name not in there)
        if own not in (*passed, _result(use.node)) and any(others):
            return True
    return False


def operator(name: str) -> str:
    """What torch called that a result is called by: `mul` of `mul_3`."""
    return _NUMBER.sub("", name)


def _result(node: ir.Node) -> str:
    """What the result of a call is called."""
    found = _PASSED.match(call_of(node))
    return found[1] if found else ""


def epsilon(node: ir.Node) -> float | None:
    """The ε of the BatchNorm in a kernel; None if nothing says it."""
    found = _CALL.search(call_of(node))
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


#: What is multiplied by, and what is added, in calls of products; tables that are looked up.
_OPERANDS = re.compile(
    r"(?:(?:linear|matmul|mm|conv)[\w.]*\]\(args = \(%\w+, %(?P<weight>\w+)(?:, %(?P<bias>\w+))?"
    r"|addmm[\w.]*\]\(args = \(%(?P<added>\w+), %\w+, %(?P<right>\w+)"
    r"|embedding[\w.]*\]\(args = \(%(?P<table>\w+), )"
)
_WEIGHTS, _BIASES = ("weight", "right", "table"), ("bias", "added")


def operand(node: ir.Node, index: int) -> str:
    """What the call passed as the weight or bias that a node reads, unless it is a parameter; "" if nothing tells."""
    found = _OPERANDS.search(call_of(node))
    if found is None:
        return ""
    is_weight = index < 2 and not graph.is_op(node, "Add")
    name = next((found[part] for part in (_WEIGHTS if is_weight else _BIASES) if found[part]), "")
    return "" if _OF_MODULES.match(name) else name


def is_passed(node: ir.Node, name: str) -> bool:
    """Whether the call was passed what is called so."""
    return name in _PASSED.findall(call_of(node).partition("](")[2])


#: What is passed to a call, parameters, buffers and constants of modules by their names; operators that move numbers.
_PASSED, _OF_MODULES = re.compile(r"%(\w+)"), re.compile(r"[pbc]_")
_MOVES = re.compile(
    r"(embedding|expand|repeat|tile|unsqueeze|squeeze|view|reshape|flatten|permute|transpose|t|slice|select|index"
    r"|index_select|clone|contiguous|detach|alias|to|_to_copy)(_\w+)?$"
)


class Calls:
    """What each node's constants are by the call that it was made of: parameters and buffers are passed by their names
    (`%p_norm_weight`), and numbers that stand in the program as such, or not at all.

    Args:
        tensors: of the checkpoint.
        parts: what torch calls inputs of operators, by these.
    """

    def __init__(
        self,
        model: ir.Model,
        tensors: Mapping[str, Any],
        renamed: Renaming,
        parts: Mapping[tuple[str, int], str],
    ) -> None:
        self._parts, self._ends = parts, tuple(f"_{part}" for part in dict.fromkeys(parts.values()))
        self._shapes: dict[str, tuple[int, ...] | None] = {}
        self._names: dict[str, str] = {}
        for owner in graph.graphs(model):
            for name, value in owner.initializers.items():
                if (tensor := graph.constant(value)) is not None:
                    self._know(name, tuple(tensor.shape.numpy()))
        for source in tensors:
            for name in renamed.here(source):
                self._know(name, getattr(tensors[source], "shape", None))
        made = [value for node in graph.nodes(model) for value in node.outputs]
        self._made = {value.name for value in (*model.graph.inputs, *made)}

    def _know(self, name: str, shape: tuple[int, ...] | None) -> None:
        self._names.setdefault(_token(name), name)
        self._shapes.setdefault(_token(name), shape)

    def read(self, node: ir.Node, index: int) -> list[str] | None:
        """Which parameters a constant input may be; none if it is one of the program. None: nothing tells it."""
        passed = dict.fromkeys(_PASSED.findall(call_of(node).partition("](")[2]))
        tensor = graph.constant(node.inputs[index])
        if not passed or tensor is None or (graph.is_op(node, "MatMul", "Gemm") and index < 2):
            return None  # matrices of products need not lie as they were passed
        if graph.is_op(node, "InstanceNormalization") and "group_norm" in call_of(node):
            return []  # whose own are behind it
        shape, part = tuple(tensor.shape.numpy()), self._parts.get((node.op_type, index), "")
        tokens = [name[2:] for name in passed if _OF_MODULES.match(name)]
        found = [each for each in tokens if self._shapes.get(each, shape) in (shape, None)]
        if part:
            exact = [each for each in found if each.endswith(f"_{part}")]
            found = exact or [each for each in found if not each.endswith(self._ends)]
        if found:
            return [self._names.get(each, "") for each in found]
        others = [name for name in passed if not _OF_MODULES.match(name) and name not in self._made]
        read = [value.name for value in node.inputs if value is not None and graph.constant(value) is None]
        unknown = len(others) > sum(name not in passed for name in read)  # the rest is what goes through the model
        return None if unknown and any(map(_MOVES.match, others)) else []


def _token(name: str) -> str:
    """What torch.export makes of a name."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())

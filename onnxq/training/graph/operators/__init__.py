"""One function an operator, in files by subject; a file of this folder is found by being here.

A function takes a `Call`, which is the node, and the node's inputs: tensors, lists of them for sequences, or None where
an optional one is left out. It returns the output, or a tuple of them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxq.errors import BadModel


@dataclass(frozen=True, eq=False)
class Call:
    """A node as its function sees it.

    Attributes:
        opset: the version of its operator's domain.
        outputs: how many of them are asked for, from the first on.
        attributes: by name, as numbers, words, lists, tensors (onnx_ir's) or graphs.
        types: of the inputs, as the model has them, where it says so.
        body: runs a graph among the attributes on inputs.
    """

    name: str
    op: str
    domain: str
    opset: int
    outputs: int
    attributes: dict[str, Any] = field(default_factory=dict)
    types: tuple[ir.DataType | None, ...] = ()
    body: Callable[..., list[Any]] = field(default=lambda *_: [], repr=False)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or what it is without being given."""
        return self.attributes.get(name, default)

    def numbers(self, name: str, given: Any = None) -> list[int] | None:
        """What operators of old take from an attribute, and later ones from an input; None where neither is there."""
        if given is not None:
            return as_list(given)
        found = self.get(name)
        return None if found is None else list(found)

    def refuse(self, why: str) -> BadModel:
        """The failure to raise."""
        return BadModel(f"node '{self.name}' ({self.op}) cannot be trained through: {why}")


@dataclass(frozen=True)
class Operator:
    """What is known of an operator.

    Attributes:
        gradient: whether one reaches the inputs from its outputs.
        constants: inputs that are settings rather than numbers to learn.
    """

    function: Callable[..., Any]
    gradient: bool = True
    constants: tuple[int, ...] = ()


_OPERATORS: dict[tuple[str, str], Operator] = {}
Function = Callable[..., Any]


def operator(
    *names: str, domain: str = "", gradient: bool = True, constants: Sequence[int] = ()
) -> Callable[[Function], Function]:
    """The function below it carries out these operators."""

    def enter(function: Function) -> Function:
        for name in names:
            enter_one(name, function, domain=domain, gradient=gradient, constants=constants)
        return function

    return enter


def enter_one(
    name: str, function: Function, *, domain: str = "", gradient: bool = True, constants: Sequence[int] = ()
) -> None:
    """The same for functions that are not written out."""
    _OPERATORS[domain, name] = Operator(function, gradient, tuple(constants))


def known() -> dict[tuple[str, str], Operator]:
    """Every operator, by domain and name."""
    _load()
    return dict(_OPERATORS)


def find(node: ir.Node) -> Operator:
    """What carries out `node`.

    Raises:
        BadModel: nothing does.
    """
    _load()
    found = _OPERATORS.get((node.domain, node.op_type))
    if found is None:
        domain = f" of domain '{node.domain}'" if node.domain else ""
        raise BadModel(
            f"node '{node.name}' cannot be trained through: there is no operator {node.op_type}{domain} in torch"
        )
    return found


@functools.cache
def _load() -> None:
    for each in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{each.name}")


def as_list(tensor: Any) -> list[int]:
    """A tensor of whole numbers as a list."""
    return [int(each) for each in tensor.reshape(-1).tolist()]

"""What the runtimes that targets are for document of the graphs they take: rules that any file can be checked by.

One file each, called like the target, with `RULES`: functions of a graph that yield what breaks them, node by node. A
rule knows what the documentation says and nothing of how a file was made.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.types import Types, infer_types


@dataclass(frozen=True)
class Finding:
    """One place where a graph breaks a rule.

    Attributes:
        rule: name of the function that found it.
        node: or the input or output of the model.
        says: what is wrong there, in words that can follow the node's name.
        refuses: the runtime does not take the graph, or computes something else; without, it is slow or less accurate
            there, or another provider computes the node.
    """

    rule: str
    node: str
    says: str
    refuses: bool


class View:
    """A graph as the runtime sees it: what is computed of constants alone is a constant there.

    Attributes:
        nodes: those that are left to run, bodies included.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._folded: set[ir.Value] = set()
        self.nodes: list[ir.Node] = []
        for node in graph.nodes(model):
            read = [value for value in node.inputs if value is not None]
            if read and all(map(self.is_constant, read)) and not graph.has_body(node) and not _is_chance(node):
                self._folded.update(node.outputs)
            elif not graph.is_op(node, "Constant"):
                self.nodes.append(node)
            else:
                self._folded.update(node.outputs)

    @functools.cached_property
    def types(self) -> Types:
        """Of the values, as far as they can be inferred."""
        return infer_types(self.model, guess=True)

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether the value is the same in every run."""
        return value is not None and (graph.constant(value) is not None or value in self._folded)

    def of(self, *op_types: str, domain: str = "") -> Iterator[ir.Node]:
        """The nodes of these operators, also those that are folded."""
        return (node for node in graph.nodes(self.model) if graph.is_op(node, *op_types, domain=domain))


#: Rules that a file may break as it is written: only the user knows, say, which sizes there will be.
LEFT_TO_USERS = frozenset({"fixed_sizes"})
#: Nodes, or names of inputs, with what is wrong there, and whether the runtime refuses it.
Found = Iterator[tuple[ir.Node | str, str, bool]]
Rule = Callable[[View], Found]


def names() -> tuple[str, ...]:
    """The targets that have rules."""
    return tuple(sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[!_]*.py")))


def findings(model: ir.Model, target: str) -> list[Finding]:
    """What in `model` breaks the rules of `target`, in the order of rules and nodes; none where it has no rules."""
    if target not in names():
        return []
    rules: tuple[Rule, ...] = importlib.import_module(f"onnxq.targets.rules.{target.replace('-', '_')}").RULES
    view, found = View(model), []
    for rule in rules:
        for where, says, refuses in rule(view):
            name = where if isinstance(where, str) else where.name or f"{where.op_type} without a name"
            found.append(Finding(rule.__name__, name, says, refuses))
    return found


def sentences(found: list[Finding], target: str) -> list[str]:
    """A sentence for each thing that is wrong, with the nodes where it is."""
    by_words: dict[str, list[str]] = {}
    for finding in found:
        by_words.setdefault(finding.says, []).append(finding.node)
    return [f"for {target}: {_names(nodes)}: {says}" for says, nodes in by_words.items()]


def _names(nodes: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in nodes[:3])
    return shown if len(nodes) <= 3 else f"{shown} and {len(nodes) - 3} more"


def _is_chance(node: ir.Node) -> bool:
    return node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")

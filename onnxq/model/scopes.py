"""Every value that is read must be produced once, in a graph that its reader can see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx

from onnxq.errors import BadModel


def require_values(proto: onnx.ModelProto, path: Path) -> None:
    """Check the names of values in all graphs, subgraphs and functions.

    Raises:
        BadModel: a value is read that nothing makes, is made twice, or an output is not made.
    """
    _graph(proto.graph, frozenset(), path)
    for function in proto.functions:
        _require_once(function.input, path)
        made = _made(function.input, function.node, path)
        _nodes(function.node, made, path)
        _outputs(function.output, made, path)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Of If, Loop and Scan, and whatever else has any."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _graph(graph: onnx.GraphProto, around: frozenset[str], path: Path) -> None:
    given = [value.name for value in graph.input]
    constants = [tensor.name for tensor in graph.initializer]
    _require_once(given, path)
    _require_once(constants, path)
    made = _made({*given, *constants}, graph.node, path)
    _nodes(graph.node, made | around, path)
    _outputs([value.name for value in graph.output], made, path)


def _made(given: Iterable[str], nodes: Iterable[onnx.NodeProto], path: Path) -> frozenset[str]:
    """What is given, and what nodes make of it."""
    made = set(given)
    for name in (name for node in nodes for name in node.output if name):
        if name in made:
            raise BadModel(f"'{path}': '{name}' is redeclared: two nodes, or a node and an input or weight, make it")
        made.add(name)
    return frozenset(made)


def _nodes(nodes: Iterable[onnx.NodeProto], seen: frozenset[str], path: Path) -> None:
    for node in nodes:
        for name in node.input:
            if name and name not in seen:
                where = f"node '{node.name or node.op_type}' ({node.op_type})"
                raise BadModel(f"'{path}': {where} reads '{name}', which nothing makes")
        for body in subgraphs(node):
            _graph(body, seen, path)


def _outputs(names: Sequence[str], made: frozenset[str], path: Path) -> None:
    for name in names:
        if name not in made:
            raise BadModel(f"'{path}': output '{name}' is produced by no node")


def _require_once(names: Sequence[str], path: Path) -> None:
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise BadModel(f"'{path}': '{twice}' is declared twice")

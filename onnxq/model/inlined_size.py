"""How many nodes a model has once its functions are inlined, and how deep they nest: counted, not done.

Functions that each call the one before twice are twice as many with each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from onnxq.errors import BadModel
from onnxq.files import limits
from onnxq.model.scopes import subgraphs

#: Domain, name and overload: what a call names a function by.
Key = tuple[str, str, str]


def key_of(each: onnx.FunctionProto | onnx.NodeProto) -> Key:
    """Of a function, or of the one that a node calls if there is one."""
    return each.domain, each.name if isinstance(each, onnx.FunctionProto) else each.op_type, each.overload


def require_few_nodes(proto: onnx.ModelProto, path: Path) -> None:
    """Count.

    Raises:
        BadModel: there would be too many nodes, or subgraphs in subgraphs, or a function calls itself.
    """
    functions = {key_of(function): function for function in proto.functions}
    sizes: dict[Key, tuple[int, int]] = {}
    for key in _callees_first(functions, path):
        sizes[key] = _size(functions[key].node, sizes)
    count, depth = _size(proto.graph.node, sizes)
    if count > limits.NODES:
        many = f"{count:,}" if count < 10**12 else "countless"
        raise BadModel(f"'{path}': it has {many} nodes once its functions are inlined, more than {limits.NODES:,}")
    if depth > limits.DEPTH:
        raise BadModel(f"'{path}': subgraphs and functions nest {depth} deep, more than {limits.DEPTH}")


def _size(nodes: Iterable[onnx.NodeProto], sizes: Mapping[Key, tuple[int, int]]) -> tuple[int, int]:
    """Nodes and depth of a graph, calls counted as what they become."""
    count = depth = 0
    for node in nodes:
        more, deeper = sizes.get(key_of(node), (1, 0))
        for body in subgraphs(node):
            inner, below = _size(body.node, sizes)
            more, deeper = more + inner, max(deeper, below + 1)
        count, depth = count + more, max(depth, deeper)
    return count, depth + 1


def _callees_first(functions: Mapping[Key, onnx.FunctionProto], path: Path) -> list[Key]:
    """The functions in an order in which each comes after those that it calls."""
    done: dict[Key, bool] = {}  # False: its callees are being visited
    order: list[Key] = []
    for root in functions:
        stack = [(root, False)]
        while stack:
            key, left = stack.pop()
            if left:
                done[key] = True
                order.append(key)
            elif key not in done:
                done[key] = False
                stack.append((key, True))
                called = {key_of(node) for node in _all_nodes(functions[key].node)} & functions.keys()
                if any(done.get(each) is False for each in called):
                    raise BadModel(f"'{path}': the function '{key[1]}' calls itself, perhaps through others")
                stack += [(each, False) for each in called if each not in done]
    return order


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from _all_nodes(body.node)

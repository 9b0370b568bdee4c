"""Recurrent layers of torch, whose weights exporters put together: one node for each layer, both directions in it.

    torch: weight_ih_l0 [gates · H, in], weight_hh_l0, bias_ih_l0, bias_hh_l0 and the same with _reverse
    ONNX:  W [directions, gates · H, in], R, B [directions, 2 · gates · H], both biases after one another

Source: ONNX's operators LSTM (gates i, o, f, c), GRU (z, r, h) and RNN; torch.nn.LSTM (i, f, g, o), GRU (r, z, n), RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.batchnorms import give
from onnxq.checkpoints.matching.names import first_call
from onnxq.checkpoints.stored import key, real
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import module_of

#: Which of torch's gates each of ONNX's is.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def fill(model: ir.Model, tensors: Mapping[str, Any], renamed: Callable[[str], str] = str) -> list[str]:
    """Give recurrent nodes of the model the numbers of the modules that they were made of; which tensors went there.

    Nodes of one module are its layers, in order, or where they are a multiple of these, and their numbers repeat too,
    those of several calls. A module that does not fit as a whole is left.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    modules: dict[str, list[ir.Node]] = {}
    for node in graph.nodes(model):
        if graph.is_op(node, *_GATES):
            modules.setdefault(_module_of(node), []).append(node)
    placed, names = list[str](), Names(model)
    for module, nodes in _by_first_calls(modules, tensors, renamed).items():
        name = renamed(key(module, "weight_ih_l0")).removesuffix("weight_ih_l0").removesuffix(".")
        layers = next(i for i in range(len(nodes) + 2) if key(name, f"weight_ih_l{i}") not in tensors)
        if not layers or len(nodes) % layers or not all(map(_are_equal, nodes[layers:], nodes)):
            continue
        made = [_inputs(node, name, i % layers, tensors) for i, node in enumerate(nodes)]
        if not all(made):
            continue
        for node, inputs in zip(nodes, made, strict=True):
            for index, (numbers, sources) in inputs.items():
                give(node, index, numbers, names)
                placed += sources
    return placed


def _by_first_calls(
    modules: Mapping[str, list[ir.Node]], tensors: Mapping[str, Any], renamed: Callable[[str], str]
) -> dict[str, list[ir.Node]]:
    """The nodes by module: torch's older exporter calls the second call of a module `r` that of a module `r_1`."""
    found = {module: list(nodes) for module, nodes in modules.items()}
    for module in modules:
        first = first_call(module, lambda name: renamed(key(name, "weight_ih_l0")) in tensors)
        if first != module and first in found:
            found[first] += found.pop(module)
    return found


def _are_equal(node: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes have the same weights, in the same order."""
    pairs = [(graph.constant(a), graph.constant(b)) for a, b in zip(node.inputs[1:3], other.inputs[1:3], strict=True)]
    return all(a is not None and b is not None and np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)


def _module_of(node: ir.Node) -> str:
    return module_of(node) or (node.name or "").rpartition("/")[0].strip("/").replace("/", ".")


def _inputs(
    node: ir.Node, module: str, layer: int, tensors: Mapping[str, Any]
) -> dict[int, tuple[NDArray[np.float32], list[str]]]:
    """(numbers, the tensors that they are of) by input of a node; none where one is missing or of another shape."""
    if node.op_type == "GRU" and not graph.attribute_int(node, "linear_before_reset", 0):
        return {}
    gates, found = _GATES[node.op_type], dict[int, tuple[NDArray[np.float32], list[str]]]()
    ends = {"reverse": ["_reverse"], "bidirectional": ["", "_reverse"]}.get(
        graph.attribute_string(node, "direction", "forward"), [""]
    )
    for index, parts in enumerate((("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh")), 1):
        sources = [[key(module, f"{part}_l{layer}{end}") for part in parts] for end in ends]
        tensor = graph.constant(node.inputs[index]) if index < len(node.inputs) else None
        names = [name for each in sources for name in each]
        if tensor is None and not any(name in tensors for name in names):
            continue
        rank = 1 if len(parts) > 1 else 2
        if tensor is None or any(not _has_gates(tensors.get(name), rank, len(gates)) for name in names):
            return {}
        if len({tensors[name].shape for name in names}) > 1:
            return {}
        made = [np.concatenate([*_turned(each, gates, tensors)]) for each in sources]
        count, *wanted = tensor.shape.numpy() or (0,)
        if [x.shape for x in made] != [tuple(wanted)] * count:
            return {}
        found[index] = np.stack(made), names
    return found


def _has_gates(array: Any, rank: int, count: int) -> bool:
    is_of_rank = isinstance(array, np.ndarray) and array.ndim == rank and array.size > 0
    return is_of_rank and array.shape[0] % count == 0


def _turned(names: list[str], gates: tuple[int, ...], tensors: Mapping[str, Any]) -> Iterator[NDArray[np.float32]]:
    """Tensors with their gates in the order of ONNX."""
    for name in names:
        x = real(name, tensors[name]).astype(np.float32)
        yield x.reshape(len(gates), -1, *x.shape[1:])[list(gates)].reshape(x.shape)

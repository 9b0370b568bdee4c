"""An ONNX model as a module of torch: float initializers are parameters, and outputs have gradients for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils.checkpoint import checkpoint

from onnxq.boundary import typed
from onnxq.errors import BadData, BadModel
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.passes.prepare import prepare
from onnxq.training.graph.execution import Runner, reads
from onnxq.training.graph.operators import find
from onnxq.training.graph.types import as_torch, torch_type

Feed = Mapping[str, Any]


@typed
def module(model: ir.Model | str | Path, *, without: Collection[str] = (), is_prepared: bool = False) -> GraphModule:
    """`model` as a module of torch.

    Args:
        model: a path, or a model, which is copied and prepared as `quantize` prepares it: functions are inlined,
            normalizations folded into convolutions, and names unique.
        without: initializers that are not read, because whoever asks puts something in their place (`read_instead`, or
            `instead` for the nodes that read them).
        is_prepared: it is prepared already, and stays as it is.

    Raises:
        BadModel: it cannot be read, or has an operator that torch cannot carry out; the sentence names the node.
    """
    if isinstance(model, (str, Path)):
        model = load_model(model)
    elif not is_prepared:
        model = model.clone()
    if not is_prepared:
        prepare(model, widen=True)
    return GraphModule(model, without)


class GraphModule(torch.nn.Module):  # type: ignore[misc]
    """A graph whose nodes are run by torch.

    Args:
        model: prepared, with functions inlined.
        without: initializers that are not read.

    Attributes:
        model: the graph that is run.
        weights: parameters by the name of their initializer.
        read_instead: by initializer, a function of its parameter (None if it was left out) that gives the tensor which
            nodes read: a fake quantization, say. A module among them is registered by `attach`.
        made_instead: by value, a function of the tensor that a node made, which gives the one that goes on.
        instead: by node, a function of its `Call` and inputs, called in the place of its operator's.
        pieces: of the main graph whose inner values are computed again for the gradients; 1: all values are kept.
    """

    def __init__(self, model: ir.Model, without: Collection[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.weights: dict[str, torch.nn.Parameter] = {}
        self.read_instead: dict[str, Callable[[Any], torch.Tensor]] = {}
        self.made_instead: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self.instead: dict[str, Callable[..., Any]] = {}
        self.pieces = 1
        self._watches: list[str] | None = None
        self._constants: dict[str, str] = {}
        self._attached = torch.nn.ModuleDict()
        self._nodes = list(model.graph)
        self._run = Runner(self._read, model.opset_imports, self._made, self.instead)
        self._run.enter(graph.nodes(model))
        self._enter_constants(set(without))

    def _enter_constants(self, without: set[str]) -> None:
        settings = _settings(self.model)
        for body in graph.graphs(self.model):
            for name, value in body.initializers.items():
                if name in without or value.const_value is None:
                    continue
                word = f"p{len(self.weights)}_{re.sub(r'[^0-9A-Za-z_]', '_', name)}"
                if value.const_value.dtype in graph.FLOATS and name not in settings:
                    self.weights[name] = torch.nn.Parameter(as_torch(value.const_value))
                    self.register_parameter(word, self.weights[name])
                else:
                    word = f"c{len(self._constants)}"
                    self.register_buffer(word, as_torch(value.const_value), persistent=False)
                    self._constants[name] = word

    def attach(self, name: str, made: torch.nn.Module) -> None:
        """Register a module that is used in the place of something, so that its parameters are known."""
        self._attached[name.replace(".", "/")] = made

    def _read(self, value: ir.Value) -> torch.Tensor:
        name = value.name or ""
        found = self.weights.get(name)
        if name in self.read_instead:
            return self.read_instead[name](found)
        if found is not None:
            return found
        if name not in self._constants:
            raise BadModel(f"the initializer '{name}' was left out, and nothing is put in its place")
        constant: torch.Tensor = getattr(self, self._constants[name])
        return constant

    def _made(self, name: str, x: torch.Tensor) -> torch.Tensor:
        change = self.made_instead.get(name)
        x = x if change is None else change(x)
        if self._watches is not None and not self._watches and not bool(torch.isfinite(x).all()):
            self._watches.append(name)
        return x

    def first_not_finite(self, feed: Feed) -> str:
        """The node that makes the first value which is not finite, in words; empty if all are."""
        self._watches = []
        try:
            self(feed)
            names = list(self._watches)
        finally:
            self._watches = None
        makers = (node for node in graph.nodes(self.model) if any(value.name in names for value in node.outputs))
        return next((f"'{node.name}' ({node.op_type})" for node in makers), "")

    @property
    def inputs(self) -> list[str]:
        """The names of the model's inputs."""
        return [value.name or "" for value in self.model.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of its outputs."""
        return [value.name or "" for value in self.model.graph.outputs]

    def forward(self, feed: Feed | None = None, /, **named: Any) -> dict[str, Any]:
        """The model's outputs by name.

        Args:
            feed, named: inputs by name: arrays of numpy or tensors.

        Raises:
            BadData: one is missing, or is none of the model's.
            BadModel: a node does not run.
        """
        return self.run({**(feed or {}), **named}, self.outputs)

    def run(self, values: Feed, wanted: Sequence[str]) -> dict[str, Any]:
        """These values of the main graph, from others; only the nodes between them are run.

        Args:
            values: inputs, or whatever is known already, by name.

        Raises:
            BadData: an input that is needed is not there, or one that is there is unknown.
            BadModel: a node does not run.
        """
        state = {name: self._tensor(name, x) for name, x in values.items()}
        for name in self.inputs:
            if name in state and name in self.made_instead and state[name].is_floating_point():
                state[name] = self.made_instead[name](state[name])
        nodes = self.between(values, wanted)
        self._require(state, nodes, wanted)
        if self.pieces > 1 and torch.is_grad_enabled() and len(nodes) > self.pieces:
            self._run_in_pieces(nodes, state, wanted)
        else:
            self._run.run(nodes, state, wanted)
        outputs = {value.name: value for value in (*self.model.graph.outputs, *self._made_values())}
        return {name: state[name] if name in state else self._run.value(outputs[name], state) for name in wanted}

    def _made_values(self) -> Iterable[ir.Value]:
        return (value for node in self._nodes for value in node.outputs)

    def between(self, known: Iterable[str], wanted: Iterable[str]) -> list[ir.Node]:
        """The nodes of the main graph that lead from known values to wanted ones, in order."""
        needed, have, found = set(wanted), set(known), []
        for node in reversed(self._nodes):
            if any(value.name in needed and value.name not in have for value in node.outputs):
                found.append(node)
                needed.update(value.name or "" for value in reads(node))
        return found[::-1]

    def _require(self, state: Mapping[str, Any], nodes: list[ir.Node], wanted: Sequence[str]) -> None:
        read = {value.name for node in nodes for value in reads(node)} | set(wanted)
        missing = next((name for name in self.inputs if name in read and name not in state), None)
        if missing is not None:
            raise BadData(f"there is no input '{missing}'; the model reads {', '.join(self.inputs)}")
        known = {*self.inputs, *(value.name for value in self._made_values())}
        other = next((name for name in state if name not in known), None)
        if other is not None:
            raise BadData(f"the model has no value '{other}'; its inputs are {', '.join(self.inputs)}")

    def _run_in_pieces(self, nodes: list[ir.Node], state: dict[str, Any], wanted: Sequence[str]) -> None:
        """Each piece keeps what goes into it, and is run again for its gradients."""
        size = -(-len(nodes) // self.pieces)
        for start in range(0, len(nodes), size):
            piece, behind = nodes[start : start + size], nodes[start + size :]
            later = {value.name or "" for node in behind for value in reads(node)} | set(wanted)
            leaves = [value.name or "" for node in piece for value in node.outputs if value.name in later]

            def carry_out(before: dict[str, Any], piece: Any = piece, leaves: Any = leaves) -> list[Any]:
                inner = dict(before)
                self._run.run(piece, inner, {*before, *leaves})
                return [inner[name] for name in leaves]

            here = {value.name or "" for node in piece for value in reads(node)}
            given = {name: x for name, x in state.items() if name in here}
            made = checkpoint(carry_out, given, use_reentrant=False, preserve_rng_state=False)
            state.update(zip(leaves, made, strict=True))
            for name in [name for name in state if name not in later]:
                del state[name]

    def _tensor(self, name: str, x: Any) -> Any:
        if isinstance(x, (torch.Tensor, list)):
            return x
        array = np.asarray(x)
        given = next((value for value in self.model.graph.inputs if value.name == name), None)
        kind = ir.DataType.from_numpy(array.dtype) if given is None or given.dtype is None else given.dtype
        if array.dtype.kind not in "fiub":
            array = array.astype(np.float32)
        return torch.from_numpy(np.array(array, order="C")).to(self.device, torch_type(kind))

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next((each.device for each in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    def without_path(self) -> dict[str, str]:
        """By parameter that no gradient reaches from any output, the nodes which stop it, in words."""
        reached: set[str] = {
            value.name or "" for value in self.model.graph.outputs if value.dtype in (None, *graph.FLOATS)
        }
        stops: dict[str, set[str]] = {}
        bodies = [list(body) for body in graph.graphs(self.model)]
        for body in graph.graphs(self.model):
            reached.update(value.name or "" for value in body.outputs if body is not self.model.graph)
        for _ in range(2 if len(bodies) > 1 else 1):
            for node in reversed([node for nodes in bodies for node in nodes]):
                self._trace_back(node, reached, stops)
        return {
            name: " and ".join(sorted(stops.get(name, {"nothing reads it"})))
            for name in self.weights
            if name not in reached
        }

    def _trace_back(self, node: ir.Node, reached: set[str], stops: dict[str, set[str]]) -> None:
        known = find(node)
        is_reached = any(value.name in reached for value in node.outputs)
        words = {f"'{node.name}' ({node.op_type})"}
        for i, value in enumerate(node.inputs):
            if value is None or value.name is None:
                continue
            if is_reached and known.gradient and i not in known.constants:
                reached.add(value.name)
            elif is_reached:
                stops.setdefault(value.name, set()).update(words)
            else:
                behind = (stops.get(out.name or "", set()) for out in node.outputs)
                stops.setdefault(value.name, set()).update(*behind)


def _settings(model: ir.Model) -> set[str]:
    """Initializers that are settings of operators, not numbers to learn."""
    found: dict[str, bool] = {}
    for node in graph.nodes(model):
        known = find(node)
        for i, value in enumerate(node.inputs):
            if value is not None and value.name:
                found[value.name] = found.get(value.name, True) and i in known.constants
    return {name for name, is_setting in found.items() if is_setting}

"""Nodes run one after the other; what nobody reads any more is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxq.errors import BadModel, OnnxqError, first_line
from onnxq.model import graph
from onnxq.training.graph.operators import Call, find

#: Of values that nobody named.
State = dict[str, Any]


class Runner:
    """Runs nodes of a prepared model on what lies in a state.

    Args:
        read: the tensor of an initializer.
        opsets: of the model's domains.
        made: is shown each tensor that a node made, and may put another one in its place.
        instead: by node, what is called in the place of the operator's function.
    """

    def __init__(
        self,
        read: Callable[[ir.Value], torch.Tensor],
        opsets: Mapping[str, int],
        made: Callable[[str, torch.Tensor], torch.Tensor],
        instead: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._read, self._opsets, self._made, self._instead = read, opsets, made, instead
        self._calls: dict[int, tuple[ir.Node, Call, Callable[..., Any]]] = {}
        self._lasts: dict[int, tuple[ir.Graph, dict[str, ir.Node]]] = {}

    def enter(self, nodes: Iterable[ir.Node]) -> None:
        """Find the functions of nodes before they run.

        Raises:
            BadModel: there is none of a node's operator.
        """
        for node in nodes:
            self._calls[id(node)] = (node, self._call(node), find(node).function)

    def run(self, nodes: Sequence[ir.Node], state: State, kept: Iterable[str] = ()) -> None:
        """Run nodes of one graph; what is not `kept` leaves the state behind its last reader among them.

        Raises:
            BadModel: a node cannot be run.
        """
        lasts = _last_readers(nodes, set(kept))
        for i, node in enumerate(nodes):
            self._run_node(node, state)
            for name in lasts.get(i, ()):
                state.pop(name, None)

    def _run_node(self, node: ir.Node, state: State) -> None:
        if id(node) not in self._calls:
            self.enter([node])
        _, call, function = self._calls[id(node)]
        inputs = [self.value(each, state) for each in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        function = self._instead.get(node.name or "", function)
        if graph.has_body(node):
            call = self._with_bodies(node, call, state)
        try:
            found = function(call, *_together(inputs))
        except (OnnxqError, torch.OutOfMemoryError, MemoryError):
            raise
        except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
            if "not enough memory" in str(error) or "can't allocate" in str(error):
                raise MemoryError(first_line(error)) from error
            raise BadModel(f"node '{node.name}' ({node.op_type}) does not run: {first_line(error)}") from error
        for value, made in zip(node.outputs, found if isinstance(found, tuple) else (found,), strict=False):
            if value.name:
                is_float = isinstance(made, torch.Tensor) and made.is_floating_point()
                state[value.name] = self._made(value.name, made) if is_float else made

    def value(self, value: ir.Value | None, state: State) -> Any:
        """What a node reads: of the state, else an initializer."""
        if value is None or not value.name:
            return None
        if value.name in state:
            return state[value.name]
        if value.const_value is not None and value.is_initializer():
            return self._read(value)
        raise BadModel(f"the value '{value.name}' is not known where it is read")

    def _call(self, node: ir.Node) -> Call:
        return Call(
            node.name or "",
            node.op_type,
            node.domain,
            self._opsets.get(node.domain, 1),
            max((i + 1 for i, value in enumerate(node.outputs) if value.name), default=0),
            {name: _plain(each) for name, each in node.attributes.items()},
            tuple(None if value is None else value.dtype for value in node.inputs),
        )

    def _with_bodies(self, node: ir.Node, call: Call, state: State) -> Call:
        """`call` whose bodies see the values around them."""

        def body(word: str, *inputs: Any) -> list[Any]:
            inner: ir.Graph = call.attributes[word]
            own = dict(state)
            own.update({value.name or "": x for value, x in zip(inner.inputs, inputs, strict=True)})
            outputs = [value.name or "" for value in inner.outputs]
            self.run(list(inner), own, {*state, *outputs})
            return [self.value(value, own) for value in inner.outputs]

        return Call(call.name, call.op, call.domain, call.opset, len(node.outputs), call.attributes, call.types, body)


def reads(node: ir.Node) -> Iterable[ir.Value]:
    """What a node reads, its bodies and what they give included."""
    yield from graph.read_by(node)
    for body in graph.bodies(node):
        yield from body.outputs


def _last_readers(nodes: Sequence[ir.Node], kept: set[str]) -> dict[int, list[str]]:
    """By position of a node, the values that nobody needs behind it."""
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for value in (*reads(node), *node.outputs):
            last[value.name or ""] = i
    found: dict[int, list[str]] = {}
    for name, i in last.items():
        if name and name not in kept:
            found.setdefault(i, []).append(name)
    return found


def _plain(attribute: ir.Attr) -> Any:
    """An attribute as Python has it."""
    value = attribute.value
    return list(value) if isinstance(value, (tuple, list)) else value


def _together(inputs: list[Any]) -> list[Any]:
    """Numbers that are computed from shapes live on the processor; they go where the others are."""
    devices = {each.device for each in inputs if isinstance(each, torch.Tensor)}
    if len(devices) < 2:
        return inputs
    there = next(device for device in devices if device.type != "cpu")
    return [each.to(there) if isinstance(each, torch.Tensor) else each for each in inputs]

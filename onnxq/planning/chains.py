"""Operators in a row that one step of a region computes: functions of one value, element by element, and changes of
shape and order.

A function of a code is a table of 256 codes, or of as many for each channel, however many operators compute it: x
times sigmoid(x), a HardSwish that an exporter wrote as Add, Clip, Mul and Div, a normalization that could not be
folded. So it is rounded once, behind the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.absorbed import final_output, producer_of, product_of

#: Functions of each element, of one value and constants.
FUNCTIONS = frozenset(
    [
        *("Abs", "Add", "Atan", "BatchNormalization", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Gelu"),
        *("HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow"),
        *("Reciprocal", "Relu", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub"),
        *("Swish", "Tanh", "ThresholdedRelu"),
    ]
)
#: Changes of shape and order.
ORDERS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})
#: Nodes of one chain.
LONGEST = 24


@dataclass(frozen=True)
class Chain:
    """What computes one value from another.

    Attributes:
        root: the only value that it reads and that is not constant.
        nodes: in order; the last one makes the value.
        channels: for how many channels constants have a number each; 1 where they are the same for all.
        rank: that the value must have for these to be channels; None: any.
    """

    root: ir.Value
    nodes: tuple[ir.Node, ...]
    channels: int = 1
    rank: int | None = None

    @property
    def reads(self) -> list[tuple[ir.Node, int]]:
        """Where it reads its root: node and number of the input."""
        return [(node, i) for node in self.nodes for i, value in enumerate(node.inputs) if value is self.root]

    def keeps_shape(self, rank: int | None) -> bool:
        """Whether functions of a value of so many dimensions have its shape: constants of more would add some."""
        tensors = [graph.constant(value) for node in self.nodes for value in node.inputs]
        widest = max((len(tensor.shape) for tensor in tensors if tensor is not None), default=0)
        return widest <= (2 if rank is None else rank) and (self.channels == 1 or self.rank in (None, rank))

    @property
    def is_function(self) -> bool:
        return self.nodes[-1].op_type in FUNCTIONS


def chain_of(node: ir.Node) -> Chain | None:
    """The longest chain whose result `node` makes, with the Relu or Clip that belongs to it; None if there is none."""
    return chain_to(final_output(node))


def chain_to(value: ir.Value) -> Chain | None:
    """The longest chain that makes `value` and whose other values nobody else reads."""
    last = value.producer()
    kind = next((kind for kind in (FUNCTIONS, ORDERS) if last is not None and last.op_type in kind), None)
    if last is None or kind is None or not _is_link(last, kind) or not _is_its_own(value):
        return None
    nodes: dict[ir.Node, None] = {last: None}
    found: tuple[ir.Value, tuple[ir.Node, ...]] | None = None
    while True:
        read = dict.fromkeys(v for node in nodes for v in _given(node) if v.producer() not in nodes)
        if len(read) == 1:
            found = next(iter(read)), tuple(nodes)
        before = next((v for v in read if _is_inside(v, nodes, kind)), None)
        if before is None or len(nodes) == LONGEST:
            break
        producer = before.producer()
        assert producer is not None
        nodes[producer] = None
    if found is None:
        return None
    root, members = found
    return _with_channels(Chain(root, _in_order(members)))


def chains(model: ir.Model) -> dict[str, Chain]:
    """By the name of the node that makes its result, every chain that is no part of another."""
    makers = [node for node in graph.nodes(model) if node.outputs and producer_of(final_output(node)) is node]
    found = {node: chain for node in makers if (chain := chain_of(node)) is not None}
    inner = {node for maker, chain in found.items() for node in chain.nodes if node is not maker}
    return {node.name or "": chain for node, chain in found.items() if node not in inner}


def _given(node: ir.Node) -> list[ir.Value]:
    """Inputs that are no constants."""
    return [value for value in node.inputs if value is not None and graph.constant(value) is None]


def _is_link(node: ir.Node, kind: frozenset[str]) -> bool:
    if node.domain != "" or node.op_type not in kind or len([o for o in node.outputs if o.name]) != 1:
        return False
    tensors = [tensor for value in node.inputs[1:] if (tensor := graph.constant(value)) is not None]
    if kind is ORDERS:
        return len(_given(node)) == 1 and _given(node)[0] is node.inputs[0]
    return all(t.dtype is ir.DataType.FLOAT for t in tensors) and bool(_given(node))


def _is_inside(value: ir.Value, nodes: dict[ir.Node, None], kind: frozenset[str]) -> bool:
    """Whether a value that a chain reads can be one of its own."""
    producer = value.producer()
    if producer is None or value.is_graph_output() or any(use.node not in nodes for use in value.uses()):
        return False
    same_graph = producer.graph is next(iter(nodes)).graph
    return same_graph and _is_link(producer, kind) and _is_its_own(value)


def _is_its_own(value: ir.Value) -> bool:
    """Whether it is not made by an activation or bias that belongs to a convolution, a product, or the sum of two
    values."""
    if product_of(value) is not None:
        return False
    maker = producer_of(value)
    return maker is value.producer() or (maker is not None and _is_link(maker, FUNCTIONS) and len(_given(maker)) == 1)


def _in_order(nodes: tuple[ir.Node, ...]) -> tuple[ir.Node, ...]:
    """Each behind those whose values it reads."""
    left, done = dict.fromkeys(nodes), dict[ir.Node, None]()
    while left:
        for node in list(left):
            if all(value.producer() not in left for value in _given(node)):
                done[node] = None
                del left[node]
    return tuple(done)


def _with_channels(chain: Chain) -> Chain | None:
    """The chain, knowing its channels; None where a constant is neither one number nor one for each channel."""
    if not chain.is_function:
        return chain
    channels, ranks = {1}, set()
    for node in chain.nodes:
        for value in node.inputs:
            tensor = graph.constant(value)
            if tensor is None or tensor.size == 1:
                continue
            shape = list(np.trim_zeros([dim - 1 for dim in tensor.shape.numpy()], "f"))
            channels.add(tensor.size)
            if any(shape[1:]):
                return None
            if node.op_type != "BatchNormalization":
                ranks.add(len(shape) + 1)
    if len(channels) > 2 or len(ranks) > 1:
        return None
    return Chain(chain.root, chain.nodes, max(channels), next(iter(ranks), None))

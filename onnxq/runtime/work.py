"""How much work one run of a model is, counted and not timed: the same number on every machine.

What may be tried on a model follows from it, so that a busy or a slow machine tries what any other does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.runtime.session import Feed, Session

#: What a core of a common server does in a second, about: multiplications of products, other elements; and what a node
#: takes however small it is. With these, counted seconds are near to those of a clock there.
MULTIPLICATIONS, ELEMENTS, NODE = 6e10, 4e9, 1e-6
_RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
_CONTROL_FLOW = ("If", "Loop", "Scan")
#: Read a part of their first input, or only its shape.
_LOOKING = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Shape", "Size"})
_RENAMING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


@dataclass(frozen=True)
class Array:
    """An input or output of a node, as it was in a run."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class NodeRun:
    """One run of one node. What was left out or is no tensor is not among `inputs` and `outputs`."""

    node: str
    op: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def multiplications(self) -> int:
        """Of products and convolutions; 0 for anything else."""
        if not self.outputs or len(self.inputs) < 2:
            return 0
        x, w, out = self.inputs[0], self.inputs[1], self.outputs[0].size
        if self.op == "Conv":
            return out * math.prod(w.shape[1:])
        if self.op == "ConvTranspose":
            return x.size * math.prod(w.shape[1:])
        if self.op in _RECURRENT:
            return math.prod(x.shape[:-1]) * sum(weight.size for weight in self.inputs[1:3])
        if self.op == "Gemm":
            return out * (x.size // max(1, self.outputs[0].shape[0]))
        if self.op == "MatMul":
            return out * (x.shape[-1] if x.shape else 1)
        if self.op == "Einsum":  # of two factors; right for a product of matrices
            return math.isqrt(x.size * w.size * out)
        if self.op.endswith("Attention"):
            return 2 * out * max(x.shape[-2:], default=1)
        return 0

    @property
    def seconds(self) -> float:
        """What it takes where a core does what is said above."""
        if self.op in _CONTROL_FLOW or self.op in _RENAMING:  # the nodes of subgraphs are counted themselves
            return NODE
        read = self.inputs[1:] if self.op in _LOOKING else self.inputs
        elements = sum(x.size for x in (*read, *self.outputs))
        return self.multiplications / MULTIPLICATIONS + elements / ELEMENTS + NODE


def trace(model: ir.Model, feed: Feed) -> list[NodeRun]:
    """Every node that runs on one sample, as often as it does, those of subgraphs too, with the shapes it meets.

    The model is run as it is: what an optimizer makes of it may differ from machine to machine.
    """
    try:
        session = Session(model, optimize=False, threads=0, profile=True)
        session.run(feed)
    except BadModel:  # the optimizer has replaced what there is no kernel for
        session = Session(model, threads=0, profile=True)
        session.run(feed)
    nodes = {node.name: node for node in model.graph.all_nodes()}
    found = []
    for name, op, details in session.node_events():
        inputs, outputs = (_arrays(details.get(f"{word}_type_shape", ())) for word in ("input", "output"))
        found.append(NodeRun(name, op, tuple(_with_constants(nodes.get(name), inputs)), tuple(outputs)))
    return found


def seconds(runs: Iterable[NodeRun]) -> float:
    """Of processor time, for all of them, by count."""
    return max(NODE, sum(run.seconds for run in runs))


def _arrays(entries: Sequence[dict[str, list[int]]]) -> list[Array]:
    """Of what onnxruntime writes as [{"float": [1, 3]}, …]."""
    return [Array(dtype, tuple(shape)) for entry in entries for dtype, shape in entry.items()]


def _with_constants(node: ir.Node | None, told: list[Array]) -> list[Array]:
    """The inputs that onnxruntime tells of, and those it leaves out: packed weights, constants around a subgraph."""
    values = [] if node is None else [value for value in node.inputs if value is not None]
    for index, value in enumerate(values):
        if len(told) < len(values) and value.const_value is not None:
            constant = Array(value.const_value.dtype.name.lower(), tuple(value.const_value.shape.numpy()))
            if told[index : index + 1] != [constant]:
                told.insert(index, constant)
    return told

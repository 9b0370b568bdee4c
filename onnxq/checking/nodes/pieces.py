"""Single products and lookups: which of them are looked at, what they are run on, and the pieces that compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.types import TypeAndShape, Types
from onnxq.runtime.session import Feed

#: Nodes that are run at most.
NODES = 12
#: Nodes with larger float weights are not among them, unless there are no others: the runtime copies each weight.
NODE_BYTES = 1 << 27


@dataclass(frozen=True)
class Operands:
    """A product or lookup of a constant weight, at input `index`, and of the one activation that it reads."""

    node: ir.Node
    index: int
    weight: ir.TensorProtocol
    read: ir.Value

    def activation(self, types: Types, rng: np.random.Generator, rows: int) -> NDArray:
        """Random numbers for what is read."""
        shape = tuple(self.weight.shape.numpy())
        if self.node.op_type == "Gather":
            return rng.integers(0, shape[graph.attribute_int(self.node, "axis", 0)], (1, rows))
        k, is_swapped = _contracted(self.node, self.index, shape)
        x = rng.standard_normal([*_leading(types.of(self.read), shape), rows, k]).astype(self.weight.dtype.numpy())
        if types.of(self.read).rank == 1:
            return x[0]
        return x.swapaxes(-1, -2) if is_swapped else x


def _contracted(node: ir.Node, index: int, shape: Sequence[int]) -> tuple[int, bool]:
    """How many numbers a product sums over, and whether they lie along the last axis but one of the activation."""
    is_turned = [bool(graph.attribute_int(node, name, 0)) for name in ("transA", "transB")]
    k = shape[-1] if is_turned[index] != (index == 0) else shape[-2]
    return k, is_turned[1 - index] != (index == 0)


def _leading(read: TypeAndShape, shape: Sequence[int]) -> list[int]:
    """Dimensions of an activation before the last two, which are the weight's or 1."""
    rank = 2 if read.rank is None else max(2, read.rank)
    wanted = [1] * rank + list(shape[:-2])
    known = (read.shape or ())[:-2] or [None] * (rank - 2)
    return [1 if dim == 1 else own for dim, own in zip(known, wanted[len(wanted) - rank + 2 :], strict=True)]


class Piece:
    """What one of the models computes between the activation that a node reads, of which `x` is one, and what it makes.

    It is found by the names of both.
    """

    def __init__(self, model: ir.Model, types: Types, operands: Operands, x: NDArray) -> None:
        self._name = operands.read.name or ""
        inside = ir.convenience.extract(model.graph, inputs=[self._name], outputs=[operands.node.outputs[0].name or ""])
        self.model = ir.Model(inside, ir_version=model.ir_version, functions=list(model.functions.values()))
        dtype = types[self._name].dtype or ir.DataType.from_numpy(x.dtype)
        for value in inside.inputs:  # which has no type where it was a value inside the model
            value.type, value.shape = ir.TensorType(dtype), ir.Shape([None] * x.ndim)
        self._dtype = dtype.numpy()

    def feed(self, x: NDArray) -> Feed:
        """`x` in the type that it has in this model."""
        return {self._name: x.astype(self._dtype)}


def sample(prepared: ir.Model, saved: ir.Model, names: Sequence[str]) -> list[Operands]:
    """Up to `NODES` nodes with a constant weight and one activation: one of each shape first, large ones first.

    What the saved model computes together with its neighbours cannot be cut out of it.
    """
    wanted, known = set(names), ir.convenience.create_value_mapping(saved.graph, include_subgraphs=False)
    found = [operands for node in prepared.graph if node.name in wanted for operands in _operands(node)]
    found = [each for each in found if each.read.name in known and each.node.outputs[0].name in known]
    found.sort(key=_nbytes, reverse=True)
    small = [each for each in found if _nbytes(each) <= NODE_BYTES] or found[-1:]
    seen: Counter[tuple[str, int]] = Counter()
    ranked = []
    for each in small:
        shape = (each.node.op_type, _nbytes(each))
        ranked.append((seen[shape], each))
        seen[shape] += 1
    ranked.sort(key=lambda entry: entry[0])
    return [each for _, each in ranked[:NODES]]


def _nbytes(operands: Operands) -> int:
    return operands.weight.nbytes


def _operands(node: ir.Node) -> Iterator[Operands]:
    """Those of a node, if it is such a product or lookup and reads no other activation."""
    if not graph.is_op(node, "MatMul", "Gemm", "Gather"):
        return
    read = [(i, x) for i, x in enumerate(node.inputs) if x is not None and graph.constant(x) is None]
    if len(read) == 1 and (place := read[0][0]) < 2 and (node.op_type != "Gather" or place == 1):
        weight = graph.constant(node.inputs[1 - place])
        if weight is not None and (node.op_type == "Gather" or len(weight.shape) > 1):
            yield Operands(node, 1 - place, weight, read[0][1])

"""What a step of a region stands for: nodes of the graph, the tensors they read, and what the step says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.planning.chains import Chain

#: What a step says: numbers, or constants, which become inputs of the node; arrays become constants first.
Words = dict[str, int | list[int] | ir.Value | NDArray | None]
#: What names a tensor: in int8 the QuantizeLinear that makes it, in bf16 the value.
Tensor = ir.Node | ir.Value


@dataclass(frozen=True, eq=False)
class Group:
    """A step of a region.

    Attributes:
        does: the step's word.
        operands: DequantizeLinear nodes that make what it reads float.
        nodes: of the graph that it stands for, in order.
        sources: the tensors that it reads.
        words: what else the step says.
    """

    does: str
    operands: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]
    sources: tuple[Tensor, ...]
    words: Words = field(default_factory=dict)
    #: What a table is of.
    chain: Chain | None = None
    #: Whether what it reads lies as stacks of matrices (`forms.py`).
    reads_stack: bool = False
    #: Of the last node, the number of the output that is made.
    output: int = 0

    @property
    def last(self) -> ir.Node:
        """The QuantizeLinear that ends it, or the node whose output is float."""
        return self.nodes[-1]

    @property
    def made(self) -> Tensor:
        """The tensor that others may read."""
        return self.last

    @property
    def makes_tensor(self) -> bool:
        """Whether others may read what it makes, in the place of floats."""
        return self.last.op_type == "QuantizeLinear"

    @property
    def dequantizers(self) -> list[ir.Node]:
        """Who makes its codes float."""
        return [use.node for use in self.last.outputs[0].uses()] if self.makes_tensor else []


@dataclass(frozen=True, eq=False)
class NumberGroup(Group):
    """A step that makes numbers in floating point; its sources are values."""

    @property
    def made(self) -> Tensor:
        return self.last.outputs[self.output]

    @property
    def makes_tensor(self) -> bool:
        return True

    @property
    def dequantizers(self) -> list[ir.Node]:
        return []


@dataclass(frozen=True, eq=False)
class FloatGroup(NumberGroup):
    """A step that makes float32, which others may read.

    Attributes:
        decodes: whether what it reads that is codes has to be made float32 first, by a step of its own.
    """

    decodes: bool = False


class _Entry(NumberGroup):
    @property
    def made(self) -> Tensor:
        value = self.words["in"]
        assert isinstance(value, ir.Value)
        return value


def read_of(value: ir.Value) -> Group:
    """The step that reads numbers that come from outside."""
    return _Entry("read", (), (), (), {"in": value})


def is_quantize(node: ir.Node | None) -> bool:
    """Whether this makes codes 0…255 by one constant scale, of float32."""
    if not graph.is_op(node, "QuantizeLinear") or node is None or len(node.inputs) != 3:
        return False
    value, scale, zero = node.inputs
    typed = value is not None and value.dtype in (ir.DataType.FLOAT, None)  # which the scale says too
    return typed and is_number(scale, ir.DataType.FLOAT) and is_number(zero, ir.DataType.UINT8)


def source_of(value: ir.Value | None) -> ir.Node | None:
    """The QuantizeLinear whose codes `value` is made of, by a DequantizeLinear of the same scale."""
    dequantize = graph.producer(value)
    if not graph.is_op(dequantize, "DequantizeLinear") or dequantize is None:
        return None
    quantize = graph.producer(dequantize.inputs[0])
    if not is_quantize(quantize) or quantize is None:
        return None
    return quantize if len(dequantize.inputs) == 3 and are_equal(quantize, dequantize) else None


def is_number(value: ir.Value | None, dtype: ir.DataType) -> bool:
    """Whether this is a constant of one element of this type."""
    tensor = graph.constant(value)
    return tensor is not None and tensor.dtype is dtype and tensor.size == 1


def are_equal(some: ir.Node, others: ir.Node) -> bool:
    """Whether two nodes have the same constants as scale and zero point."""
    return all(
        a is b or _same(graph.constant(a), graph.constant(b))
        for a, b in zip(some.inputs[1:3], others.inputs[1:3], strict=True)
    )


def _same(a: ir.TensorProtocol | None, b: ir.TensorProtocol | None) -> bool:
    return a is not None and b is not None and a.dtype is b.dtype and bool(np.array_equal(a.numpy(), b.numpy()))

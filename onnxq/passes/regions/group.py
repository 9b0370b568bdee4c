"""What a step of a region stands for: nodes of the graph, the tensors they read, and what the step says."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir
from numpy.typing import NDArray

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

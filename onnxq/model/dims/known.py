"""What is known of sizes so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.model import graph


@dataclass(frozen=True)
class Least:
    """The smaller one of a size and of a number: as of a table of `most` rows that is cut off."""

    of: tuple[ir.Value, int]
    most: int


#: A size: a number, or that of an axis of some value, the first one that is known to have it.
Dim = int | tuple[ir.Value, int] | Least
Dims = tuple[Dim, ...]
#: Elements of a tensor of integers that is looked into.
MOST = 16

INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


def new(node: ir.Node, axis: int) -> Dim:
    """A size of what a node makes, of which nothing else is known."""
    return (node.outputs[0], axis)


@dataclass(frozen=True)
class Elements:
    """Of a tensor of integers with one dimension, or (scalar) with none."""

    sizes: Dims
    is_scalar: bool
    dtype: ir.DataType

    @property
    def numbers(self) -> list[int] | None:
        found = [size for size in self.sizes if isinstance(size, int)]
        return found if len(found) == len(self.sizes) else None


@dataclass
class Sizes:
    """By value, as far as it is known: its dimensions, and its elements."""

    dims: dict[ir.Value, Dims] = field(default_factory=dict)
    elements: dict[ir.Value, Elements] = field(default_factory=dict)
    #: The inputs of the model, where the first dimension of all is declared as the same; else none.
    of_one_batch: frozenset[ir.Value] = frozenset()

    def of(self, value: ir.Value | None) -> Dims | None:
        if value is None:
            return None
        tensor = graph.constant(value)
        if tensor is not None:
            return tuple(int(size) for size in tensor.shape.numpy())
        elements = self.elements.get(value)
        if elements is not None:
            return () if elements.is_scalar else (len(elements.sizes),)
        return self.dims.get(value)

    def elements_of(self, value: ir.Value | None) -> Elements | None:
        tensor = graph.constant(value)
        if value is None or tensor is None:
            return None if value is None else self.elements.get(value)
        if tensor.dtype not in INTEGERS or tensor.size > MOST or len(tensor.shape) > 1:
            return None
        sizes = tuple(int(each) for each in tensor.numpy().reshape(-1))
        return Elements(sizes, len(tensor.shape) == 0, tensor.dtype)

    def numbers(self, value: ir.Value | None) -> list[int] | None:
        found = self.elements_of(value)
        return None if found is None else found.numbers

    def add_inputs(self, subgraph: ir.Graph, *, are_required: bool) -> None:
        """Note down what is declared.

        Args:
            are_required: the runtime refuses other numbers, as it does for the model's own inputs. Those of bodies are
                what the exporter saw.
        """
        for value in subgraph.inputs:
            if value.shape is not None:
                dims = enumerate(value.shape)
                self.dims[value] = tuple(
                    dim if isinstance(dim, int) and are_required else (value, axis) for axis, dim in dims
                )

"""QuantizeLinear and DequantizeLinear of activations: what stands between them, and what their codes can hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.doctor.stored import constant_of
from onnxq.model import graph
from onnxq.planning.absorbed import final_output


@dataclass(frozen=True)
class Codes:
    """Of a QuantizeLinear or DequantizeLinear with one fixed scale.

    Attributes:
        type: of the codes.
        low, high: the least and the largest number that they stand for.
    """

    type: ir.DataType
    scale: float
    zero: int
    low: float
    high: float

    @property
    def is_least_zero(self) -> bool:
        """Whether the least code stands for 0, as behind a Relu."""
        return self.low == 0


def codes_of(node: ir.Node) -> Codes | None:
    """Of a node with one constant scale and whole codes of at most 16 bits; None for others."""
    scale, zero = constant_of(node, 1), constant_of(node, 2)
    if scale is None or scale.size != 1 or (zero is None and len(node.inputs) > 2 and node.inputs[2] is not None):
        return None
    kind = code_type(node)
    if kind is None or not kind.is_integer() or kind.bitwidth > 16:
        return None
    width = kind.bitwidth
    least = -(1 << (width - 1)) if kind.is_signed() else 0
    if zero is not None and not zero.size:
        return None
    z = 0 if zero is None else int(zero.numpy().reshape(-1)[0])
    s = float(scale.numpy().reshape(-1)[0])
    return Codes(kind, s, z, (least - z) * s, (least + (1 << width) - 1 - z) * s)


def code_type(node: ir.Node) -> ir.DataType | None:
    """Of what a QuantizeLinear makes, or a DequantizeLinear reads."""
    zero = constant_of(node, 2)
    if zero is not None:
        return zero.dtype
    if node.op_type == "QuantizeLinear":
        named = graph.attribute_int(node, "output_dtype", 0) or int(ir.DataType.UINT8)
        return ir.DataType(named) if named in set(map(int, ir.DataType)) else None
    source = node.inputs[0]
    before = graph.producer(source)
    if before is not None and graph.is_op(before, "QuantizeLinear"):
        return code_type(before)
    return None if source is None else source.dtype


def dequantizer(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear of an activation that makes `value`; None if something else does."""
    node = graph.producer(value)
    if node is None or not graph.is_op(node, "DequantizeLinear") or graph.constant(node.inputs[0]) is not None:
        return None
    return node


def quantizers(value: ir.Value) -> list[ir.Node] | None:
    """The QuantizeLinears that read `value`, where nothing else does; None where something does, or nothing at all."""
    readers = [use.node for use in value.uses()]
    is_rounded = bool(readers) and all(graph.is_op(each, "QuantizeLinear") for each in readers)
    return readers if is_rounded and not value.is_graph_output() else None


def reads_codes(node: ir.Node) -> bool:
    """Whether every activation that `node` reads was codes, and one at least is."""
    activations = [value for value in node.inputs if value is not None and graph.constant(value) is None]
    moving = [value for value in activations if not graph.is_of_constants(value)]
    return bool(moving) and all(dequantizer(value) is not None for value in moving)


def result_of(node: ir.Node) -> ir.Value:
    """What `node` makes, behind a Relu or Clip that its integer kernel would do the work of."""
    return final_output(node)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest, of arrays of one shape."""
    return float(np.max(np.abs(got - wanted) / np.maximum(np.abs(wanted), np.finfo(np.float32).tiny), initial=0.0))

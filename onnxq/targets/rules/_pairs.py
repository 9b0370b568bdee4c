"""Shared by the rules: QuantizeLinear, DequantizeLinear, and what stands between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.targets.rules import View

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
#: Operators with weights, and which input those are.
WEIGHTED = {"Conv": 1, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1}
#: Operators on codes, which runtimes that read pairs of the two above have no kernels for.
ON_CODES = (
    *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
    *("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearAdd"),
    *("QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul"),
    *("QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere"),
)


def pairs(view: View) -> Iterator[ir.Node]:
    """Every QuantizeLinear and DequantizeLinear, of the standard or of onnxruntime's domain."""
    for domain in ("", graph.MICROSOFT):
        yield from view.of(QUANTIZE, DEQUANTIZE, domain=domain)


def is_pair(node: ir.Node | None, op_type: str) -> bool:
    return graph.is_op(node, op_type) or graph.is_op(node, op_type, domain=graph.MICROSOFT)


def code_type(node: ir.Node) -> ir.DataType | None:
    """The type of the codes that a QuantizeLinear makes or a DequantizeLinear reads; None where nothing says so."""
    if is_pair(node, DEQUANTIZE):
        read = node.inputs[0]
        producer = graph.producer(read)
        if read is not None and (known := (graph.constant(read) or read).dtype) is not None:
            return known
        return code_type(producer) if producer is not None and is_pair(producer, QUANTIZE) else None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is not None:
        return (graph.constant(zero) or zero).dtype
    named = graph.attribute_int(node, "output_dtype", 0)
    return ir.DataType(named or ir.DataType.UINT8) if named in set(map(int, ir.DataType)) else None


def dequantized(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that makes `value`, if one does."""
    node = graph.producer(value)
    return node if node is not None and is_pair(node, DEQUANTIZE) else None


def zero_points(node: ir.Node) -> np.ndarray | None:
    """Those of a QuantizeLinear or DequantizeLinear, if they are constant; None where it has none."""
    tensor = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    return None if tensor is None else np.asarray(tensor.numpy())


def scale_size(node: ir.Node) -> int | None:
    """How many scales it has; None where that is not known."""
    value = node.inputs[1]
    shape = None if value is None else value.shape
    if shape is None or not shape.is_static():
        return None
    return int(np.prod(shape.numpy(), dtype=np.int64))


def is_activation(view: View, node: ir.Node) -> bool:
    """Whether what is quantized or dequantized is another one in every run."""
    return not view.is_constant(node.inputs[0])


def readers(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses()]


def source_behind(node: ir.Node, ops: Collection[str]) -> ir.Node | None:
    """The node of one of these operators whose result a QuantizeLinear rounds, seen through a Relu or Clip."""
    value = node.inputs[0]
    producer = graph.producer(value)
    if graph.is_op(producer, "Relu", "Clip") and producer is not None and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    return producer if producer is not None and graph.is_op(producer, *ops) else None


def rounded_before_sums(view: View) -> Iterator[ir.Node]:
    """Convolutions that are rounded although the Add behind alone reads them, and could be added to the other operand
    before anything is rounded."""
    for add in view.nodes:
        if not graph.is_op(add, "Add") or len(add.inputs) != 2:
            continue
        rounded = [_convolution_of(value) for value in add.inputs]
        if all(dequantized(value) is not None or view.is_constant(value) for value in add.inputs):
            yield from [node for node in rounded if node is not None][:1]


def _convolution_of(value: ir.Value | None) -> ir.Node | None:
    """The convolution whose result is rounded and unrounded again, for one reader alone, to become `value`."""
    node = dequantized(value)
    for _ in range(2):
        if node is None or graph.only_consumer(node.outputs[0]) is None or node.inputs[0] is None:
            return None
        node = node.inputs[0].producer()
    is_free = node is not None and graph.is_op(node, "Conv") and graph.only_consumer(node.outputs[0]) is not None
    return node if is_free else None

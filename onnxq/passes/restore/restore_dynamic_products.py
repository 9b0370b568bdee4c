"""Products of activations that are quantized in every run become products of floats again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    array_of,
    input_of,
    whole,
    whole_format,
)

_FLOAT_OPS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


class RestoreDynamicProducts(RestorePass):
    """DynamicQuantizeLinear, MatMulInteger or ConvInteger, Cast, Mul by both scales: a MatMul, or a Conv."""

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if not graph.is_op(node, *_FLOAT_OPS) or node.inputs[0] is None or node.inputs[1] is None:
            return False
        dynamic, codes = node.inputs[0].producer(), graph.constant(node.inputs[1])
        if not graph.is_op(dynamic, "DynamicQuantizeLinear") or codes is None:
            return False
        assert dynamic is not None
        if input_of(node, 2) is not dynamic.outputs[2] or (
            input_of(node, 3) and array_of(graph.constant(input_of(node, 3))) is None
        ):
            return False
        cast = graph.only_consumer(node.outputs[0])
        scaled = None if cast is None else graph.only_consumer(cast.outputs[0])
        if cast is None or scaled is None or cast.op_type != "Cast" or scaled.op_type != "Mul":
            return False
        steps = _weight_scale(scaled, cast.outputs[0], dynamic.outputs[1])
        stored = None if steps is None else _stored(node, codes, steps)
        if stored is None:
            return False
        source = node.inputs[1]
        w = restored.weight(node, source, stored, ir.DataType.FLOAT, steps)
        name, node.name = node.name or "", restored.names.fresh(f"{node.name}_quantized")
        op, out = _FLOAT_OPS[node.op_type], restored.names.fresh(f"{name}_out")
        y = graph.add_node(scaled, op, [dynamic.inputs[0], w], name, out)
        made = y.producer()
        assert made is not None
        made.attributes.update(node.attributes)
        graph.replace_value(scaled.outputs[0], y)
        return True


def _weight_scale(scaled: ir.Node, product: ir.Value, of_x: ir.Value) -> ir.Value | None:
    """The constant scale of the weight: `scaled` multiplies by its product with the scale of x."""
    other = scaled.inputs[1] if scaled.inputs[0] is product else scaled.inputs[0]
    both = graph.producer(other)
    if both is None or both.op_type != "Mul" or of_x not in both.inputs:
        return None
    found = both.inputs[1] if both.inputs[0] is of_x else both.inputs[0]
    return found if graph.constant(found) is not None else None


def _stored(node: ir.Node, codes: ir.TensorProtocol, scale: ir.Value) -> Stored | None:
    shape, steps = tuple(codes.shape.numpy()), graph.constant(scale)
    assert steps is not None
    channel = 0 if node.op_type == "ConvInteger" else len(shape) - 1
    zeros, is_signed = array_of(graph.constant(input_of(node, 3))), codes.dtype is ir.DataType.INT8
    if codes.dtype not in (ir.DataType.INT8, ir.DataType.UINT8) or steps.dtype is not ir.DataType.FLOAT:
        return None
    if steps.size != 1 and steps.size != shape[channel]:
        return None
    if zeros is not None and zeros.size != 1 and zeros.size != steps.size:
        return None
    how = Granularity() if steps.size == 1 else Granularity(channel)
    format = whole_format(8, zeros, is_signed=is_signed)

    def read() -> QuantizedTensor:
        scales = steps.numpy().reshape(how.scale_shape(shape))
        offsets = None if zeros is None else np.broadcast_to(zeros.reshape(-1), (steps.size,)).reshape(scales.shape)
        return whole(format, codes.numpy(), scales, offsets, how, is_signed=is_signed)

    return Stored(format, how, shape, read)

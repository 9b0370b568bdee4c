"""Codes of channels that standard operators unpack at load, as `quantize/store_weights.py` spells them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import formats
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    array_of,
    before_cast,
    read_instead,
    whole,
    whole_format,
)

_FLOATS = {ir.DataType.FLOAT8E4M3FN: "float8_e4m3", ir.DataType.FLOAT8E5M2: "float8_e5m2"}
_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


class ReadChannels(RestorePass):
    """Cast, Sub of zero points and Mul by scales, one a channel or one in all; floats of 8 bits have no zero points.

    The codes may be the transpose of a constant: those of a table that a head reads, too.
    """

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if not graph.is_op(node, "Mul") or len(node.inputs) != 2 or node.inputs[0] is None:
            return False
        scales, zeros, offset = graph.constant(node.inputs[1]), None, None
        inner: ir.Value | None = node.inputs[0]
        sub = node.inputs[0].producer()
        if sub is not None and graph.is_op(sub, "Sub"):
            inner, offset = sub.inputs[0], before_cast(sub.inputs[1])
            zeros = graph.constant(offset)
            if zeros is None or zeros.dtype in graph.FLOATS:
                return False
        read = before_cast(inner)
        source, order = _turned(read)
        codes = graph.constant(source)
        if scales is None or source is None or read is inner or codes is None:
            return False
        short = _FLOATS.get(codes.dtype)
        if codes.dtype not in _TYPES and (short is None or zeros is not None):
            return False
        if any(use.node.op_type == "Floor" for use in node.outputs[0].uses()):
            return False  # the high halves of bytes, and not a weight (`store_weights.py`)
        lying = tuple(codes.shape.numpy())
        order = order or tuple(range(len(lying)))
        shape, per = tuple(lying[axis] for axis in order), tuple(scales.shape.numpy())
        axes = [axis for axis, size in enumerate(per) if size > 1]
        if len(per) not in (0, len(shape)) or len(axes) > 1 or any(per[axis] != shape[axis] for axis in axes):
            return False
        how = Granularity(axes[0]) if axes else Granularity()
        offsets, is_signed = array_of(zeros), codes.dtype.name.startswith("INT")
        format = formats.get(short) if short else whole_format(codes.dtype.bitwidth, offsets, is_signed=is_signed)

        def weight() -> QuantizedTensor:
            steps, numbers = scales.numpy().reshape(how.scale_shape(shape)), codes.numpy().transpose(order)
            if short is not None:
                return QuantizedTensor(format, how, numbers.astype(format.code_type, copy=False), steps)
            return whole(format, numbers, steps, offsets, how, is_signed=is_signed)

        w = restored.weight(node, source, Stored(format, how, shape, weight, order=order), ir.DataType.FLOAT, offset)
        read_instead(node, w, restored)
        return True


def _turned(codes: ir.Value | None) -> tuple[ir.Value | None, tuple[int, ...]]:
    """The constant that codes are the transpose of, and for each axis of these which it was; () where they are none."""
    node = graph.producer(codes)
    if node is None or not graph.is_op(node, "Transpose") or "perm" not in node.attributes:
        return codes, ()
    return node.inputs[0], tuple(node.attributes["perm"].as_ints())

"""Constants behind a DequantizeLinear, and behind a Transpose after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    constants_of,
    input_of,
    plain,
    read_instead,
    whole,
    whole_format,
)

_INTEGERS = {ir.DataType.INT2, ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16}
_NATURALS = {ir.DataType.UINT2, ir.DataType.UINT4, ir.DataType.UINT8, ir.DataType.UINT16}
_FLOATS = {ir.DataType.FLOAT8E4M3FN: "float8_e4m3", ir.DataType.FLOAT8E5M2: "float8_e5m2"}


class ReadDequantizeLinear(RestorePass):
    """The output of a DequantizeLinear of constants becomes an initializer. Biases in int32 become floats.

    Args:
        reads: whether one is to be read.
    """

    def __init__(self, reads: Callable[[ir.Node], bool] = lambda node: True) -> None:
        super().__init__()
        self.reads = reads

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        found, source = constants_of(node, 0, 1, 2), input_of(node, 0)
        if node.op_type != "DequantizeLinear" or not found or source is None or not self.reads(node):
            return False
        codes, scales, zeros = found
        if node.domain not in ("", graph.MICROSOFT):
            return False
        if codes is None or scales is None or scales.dtype not in graph.FLOATS:
            return False
        how = _granularity(node, tuple(codes.shape.numpy()), tuple(scales.shape.numpy()))
        if how is None:
            return False
        dtype = ir.DataType(graph.attribute_int(node, "output_dtype", 0) or int(scales.dtype))
        stored = _stored(codes, scales, zeros, how)
        read = node
        if stored is None:
            w = restored.floats(node, source, lambda: _floats(codes, scales, how), tuple(codes.shape.numpy()), dtype)
        else:
            read = _turned(node)
            if read is not node:
                order = read.attributes["perm"].as_ints() if "perm" in read.attributes else None
                stored = stored.transposed(order or range(len(stored.shape))[::-1])
            w = restored.weight(node, source, stored, dtype)
        read_instead(read, w, restored)
        return True


def _granularity(node: ir.Node, shape: tuple[int, ...], scales: tuple[int, ...]) -> Granularity | None:
    """Which codes share a scale; None where that is told in no way that ONNX knows."""
    if scales == () or (scales == (1,) and len(shape) != 1):
        return Granularity()
    axis = graph.attribute_int(node, "axis", 1)
    axis += len(shape) * (axis < 0)
    if not 0 <= axis < len(shape):
        return None
    if len(scales) == 1 and len(shape) >= 1 and not graph.attribute_int(node, "block_size", 0):
        return Granularity(axis) if scales[0] == shape[axis] else None
    block = graph.attribute_int(node, "block_size", 0)
    if block < 1 or scales != Granularity(axis, block).scale_shape(shape):
        return None
    return Granularity(axis, block)


def _stored(
    codes: ir.TensorProtocol, scales: ir.TensorProtocol, zeros: ir.TensorProtocol | None, how: Granularity
) -> Stored | None:
    """The weight; None if its codes are of int32, or of a type that no format of ours has."""
    shape, kind = tuple(codes.shape.numpy()), codes.dtype
    if kind not in _FLOATS and kind not in _INTEGERS | _NATURALS:
        return None
    offsets = None if zeros is None else plain(zeros.numpy())
    format = (
        formats.get(_FLOATS[kind])
        if kind in _FLOATS
        else whole_format(kind.bitwidth, offsets, is_signed=kind in _INTEGERS)
    )

    def read() -> QuantizedTensor:
        steps = scales.numpy().reshape(how.scale_shape(shape))
        if kind in _FLOATS:
            return QuantizedTensor(format, how, codes.numpy().astype(format.code_type, copy=False), steps)
        return whole(format, plain(codes.numpy()), steps, offsets, how, is_signed=kind in _INTEGERS)

    return Stored(format, how, shape, read, scales.dtype is ir.DataType.FLOAT16)


def _floats(codes: ir.TensorProtocol, scales: ir.TensorProtocol, how: Granularity) -> NDArray[np.float32]:
    """Of codes that no format has: biases in int32, without zero points."""
    shape = tuple(codes.shape.numpy())
    steps = scales.numpy().astype(np.float32).reshape(how.scale_shape(shape))
    return codes.numpy().astype(np.float32) * how.spread(steps, shape)


def _turned(node: ir.Node) -> ir.Node:
    """The Transpose that alone reads a node, if one does, else the node."""
    reader = graph.only_consumer(node.outputs[0])
    return reader if reader is not None and graph.is_op(reader, "Transpose") else node

"""onnxruntime's tables of which single rows are unpacked, com.microsoft.GatherBlockQuantized."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    constants_of,
    input_of,
    plain,
    whole,
    whole_format,
)

_DATA, _INDICES, _SCALES, _ZEROS = range(4)
_SIGNED = (ir.DataType.INT4, ir.DataType.INT8)
_TYPES = (*_SIGNED, ir.DataType.UINT4, ir.DataType.UINT8)


class ReadGathers(RestorePass):
    """GatherBlockQuantized on a table [rows, K] in blocks along K becomes a Gather."""

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        found, source = constants_of(node, _DATA, _SCALES, _ZEROS), input_of(node, _DATA)
        if not graph.is_op(node, "GatherBlockQuantized", domain=graph.MICROSOFT) or not found or source is None:
            return False
        data, scales, zeros = found
        if data is None or scales is None or data.dtype not in _TYPES or len(data.shape) != 2:
            return False
        axis, last = graph.attribute_int(node, "gather_axis", 0), graph.attribute_int(node, "quantize_axis", 1)
        bits = graph.attribute_int(node, "bits", 4) if data.dtype is ir.DataType.UINT8 else data.dtype.bitwidth
        block = graph.attribute_int(node, "block_size", 128)
        if axis not in (0, -2) or last not in (1, -1) or bits not in (2, 4, 8) or block < 1:
            return False
        stored = _stored(data, scales, zeros, bits, block)
        restored.lookup(node, restored.weight(node, source, stored, scales.dtype), input_of(node, _INDICES))
        return True


def _stored(
    data: ir.TensorProtocol, scales: ir.TensorProtocol, zeros: ir.TensorProtocol | None, bits: int, block: int
) -> Stored:
    is_packed, is_signed = data.dtype is ir.DataType.UINT8, data.dtype in _SIGNED
    rows, width = data.shape.numpy()
    k = width * 8 // bits if is_packed else width
    blocks, how = -(-k // block), Granularity(1, block)

    def zero_points() -> NDArray | None:
        if zeros is None:
            # Of bytes in which several codes lie onnxruntime takes the middle one.
            return np.full((rows, blocks), 1 << (bits - 1), np.uint8) if is_packed else None
        array = zeros.numpy()
        return layouts.from_low_first(array.reshape(rows, -1), bits, blocks) if is_packed else plain(array)

    format = whole_format(bits, zero_points(), is_signed=is_signed)

    def read() -> QuantizedTensor:
        codes = layouts.from_low_first(data.numpy(), bits, k) if is_packed else plain(data.numpy())
        return whole(format, codes, scales.numpy().reshape(rows, blocks), zero_points(), how, is_signed=is_signed)

    return Stored(format, how, (rows, k), read, scales.dtype is ir.DataType.FLOAT16)

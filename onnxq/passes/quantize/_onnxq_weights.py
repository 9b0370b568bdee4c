"""Shared by the passes that insert operators of the onnxq domain: a weight as codes of any width and a node that
unpacks them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import layouts, own_ops
from onnxq.encoding.lazy import Encoding, scales, zero_points
from onnxq.formats import E8M0, Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.own_ops import Variant
from onnxq.passes.quantize._onnxq_scales import is_nested, scale_type
from onnxq.passes.quantize.weight_forms import WeightForms, owner_of


def unpacked(constants: WeightForms, weight: ir.Value, encoding: Encoding) -> ir.Value:
    """The output of a DequantizeNBits node that decodes `encoding` to float32, at the head of the weight's graph."""
    format, granularity, shape = encoding.format, encoding.granularity, encoding.shape
    key = (format.name, granularity)

    def made() -> ir.Value:
        rows, k = layouts.as_rows(np.broadcast_to(np.int8(0), shape), granularity).shape
        blocks = 1 if granularity.block is None else -(-k // granularity.block)
        width = -(-k // 8) * format.bits
        parts = {f"_{format.name}": encoding.part(layouts.bit_fields, ir.DataType.UINT8, (rows, width))}
        stored = ir.DataType.FLOAT if is_nested(format) else scale_type(encoding)
        parts["_scale"] = encoding.part(lambda q: _groups(q, _raw(scales(q))), stored, (rows, blocks))
        offset = own_ops.offset_type(format)
        if offset is not None:
            part = encoding.part(lambda q: _groups(q, zero_points(q)), ir.DataType.from_numpy(offset), (rows, blocks))
            parts["_offset"] = part
        inputs = [constants.value(weight, suffix, key, part) for suffix, part in parts.items()]
        moved, order = moved_axes(shape, granularity)
        attributes: graph.Attributes = {
            "K": k,
            "block_size": granularity.block or k,
            "shape": moved,
            "perm": order,
            "format": format.name,
        }
        movement = "" if moved == [rows, k] and order == sorted(order) else "turned" if len(moved) == 2 else "shaped"
        variant = Variant(own_ops.DEQUANTIZE, format.name, moved=movement)
        return constants.call(owner_of(weight), variant, inputs, f"{weight.name}_unpacked", attributes)

    return constants.once((id(weight), "unpacked", key), made)


def moved_axes(shape: tuple[int, ...], granularity: Granularity) -> tuple[list[int], list[int]]:
    """(shape of the weight as `layouts.as_rows` lays it out, the axes that bring it back)."""
    axes = list(range(len(shape)))
    if granularity.axis is None:
        return list(shape), axes
    others = [axis for axis in axes if axis != granularity.axis]
    order = [granularity.axis, *others] if granularity.block is None else [*others, granularity.axis]
    return [shape[axis] for axis in order], [order.index(axis) for axis in axes]


def _groups(q: QuantizedTensor, groups: NDArray) -> NDArray:
    return layouts.group_rows(groups, q.granularity)


def _raw(array: NDArray) -> NDArray:
    return array.view(np.uint8) if array.dtype == E8M0 else array

"""Shared by the passes that insert operators of the onnxq domain: a weight as codes of any width and a node that
unpacks them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import layouts, own_ops
from onnxq.encoding.lazy import Encoding
from onnxq.model import graph
from onnxq.own_ops import Variant
from onnxq.passes.quantize._onnxq_scales import scale_rows
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of


def unpacked(constants: WeightForms, weight: ir.Value, encoding: Encoding) -> ir.Value:
    """The output of a DequantizeNBits node that decodes `encoding` to float32, at the head of the weight's graph."""
    format = encoding.format
    key = (format.name, encoding.granularity)

    def made() -> ir.Value:
        outline = encoding.outline
        inputs = [constants.value(weight, f"_{format.name}", key, encoding.part(layouts.bit_fields))]
        if format.stored_scales is not None and format.stored_scales.is_integer:
            inputs.append(scale_rows(constants, weight, encoding))
            if format.stored_minima is not None:
                inputs.append(scale_rows(constants, weight, encoding, minima=True))
        else:
            # Whoever reads the scales of a nested format here reads floats.
            stored = ir.DataType.FLOAT if format.base is not None else None
            scales = encoding.part(layouts.group_scales, stored)
            inputs.append(constants.value(weight, "_scale", key, scales))
            if format.offset_type is not None:
                offsets = encoding.part(layouts.group_offsets)
                inputs.append(constants.value(weight, "_offset", key, offsets))
        moved, order = layouts.moved_axes(outline)
        attributes: graph.Attributes = {
            "K": outline.k,
            "block_size": outline.block,
            "shape": moved,
            "perm": order,
            "format": format.name,
        }
        is_matrix = moved == [outline.rows, outline.k]
        movement = "shaped" if not is_matrix else "" if order == sorted(order) else "turned"
        variant = Variant(own_ops.DEQUANTIZE, format.name, moved=movement)
        return constants.call(owner_of(weight), variant, inputs, f"{weight.name}_unpacked", attributes)

    return constants.once((id(weight), "unpacked", key), made)

"""Shared by the passes that insert operators of the onnxq domain: scales that are stored in 8 bits."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import layouts, own_ops
from onnxq.encoding.lazy import Encoding
from onnxq.model import graph
from onnxq.own_ops import Variant
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of


def nested_scales(constants: WeightForms, weight: ir.Value, encoding: Encoding) -> ir.Value:
    """What a node at the head of the weight's graph makes of the scales in 8 bits: [T, blocks, 16]."""
    key = (encoding.format.name, encoding.granularity)

    def made() -> ir.Value:
        parts = {
            "_scale_codes": encoding.part(layouts.nested_codes),
            "_scale_factors": encoding.part(layouts.nested_factors),
            "_scale_offset": encoding.part(layouts.nested_offset),
        }
        inputs = [constants.value(weight, suffix, key, part) for suffix, part in parts.items()]
        variant = Variant(own_ops.NESTED, encoding.format.name)
        dtype = ir.DataType.FLOAT16 if encoding.half_scales else ir.DataType.FLOAT
        outline = encoding.outline
        attributes: graph.Attributes = {"N": outline.rows, "blocks": outline.blocks, "dtype": int(dtype)}
        return constants.call(owner_of(weight), variant, inputs, f"{weight.name}_scale", attributes)

    return constants.once((id(weight), "nested", key), made)

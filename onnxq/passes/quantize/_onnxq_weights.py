"""Shared by the passes that insert operators of the onnxq domain: a weight as codes of any width, its scales as codes
of their own, and the nodes that unpack them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import layouts, own_ops
from onnxq.encoding.lazy import Encoding
from onnxq.model import graph
from onnxq.own_ops import Variant
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


def nested_scales(constants: WeightForms, weight: ir.Value, encoding: Encoding) -> ir.Value:
    """What a node at the head of the weight's graph makes of the scales in 8 bits: [T, blocks, 16]."""
    key = (encoding.format.name, encoding.granularity)

    def made() -> ir.Value:
        dtype = ir.DataType.FLOAT16 if encoding.half_scales else ir.DataType.FLOAT
        attributes = {"dtype": int(dtype)}
        if encoding.format.stored_scales is not None:
            parts = {
                "_scale_codes": encoding.part(layouts.scale_code_tiles),
                "_scale_factor": encoding.part(layouts.scale_factor),
            }
        else:
            parts = {
                "_scale_codes": encoding.part(layouts.nested_codes),
                "_scale_factors": encoding.part(layouts.nested_factors),
                "_scale_offset": encoding.part(layouts.nested_offset),
            }
            attributes |= {"N": encoding.outline.rows, "blocks": encoding.outline.blocks}
        inputs = [constants.value(weight, suffix, key, part) for suffix, part in parts.items()]
        variant = Variant(own_ops.NESTED, encoding.format.name)
        return constants.call(owner_of(weight), variant, inputs, f"{weight.name}_scale", attributes)

    return constants.once((id(weight), "nested", key), made)


def widened_tiles(constants: WeightForms, weight: ir.Value, encoding: Encoding) -> ir.Value:
    """What a node there makes of codes of 2 or 3 bits: those of 4 that kernels read, [T, Kp/8, 16, 4]."""
    key = (encoding.format.name, encoding.granularity)

    def made() -> ir.Value:
        word = encoding.format.name
        codes = constants.value(weight, f"_{word}", (*key, "few"), encoding.part(layouts.few_bits_tiles))
        return constants.call(owner_of(weight), Variant(own_ops.WIDEN, word), [codes], f"{weight.name}_tiles", {})

    return constants.once((id(weight), "widened", key), made)


def scale_rows(constants: WeightForms, weight: ir.Value, encoding: Encoding, *, minima: bool = False) -> ir.Value:
    """What a node there makes of the scales, or minima, of a format of two levels: [rows, blocks]."""
    format, outline = encoding.format, encoding.outline
    key, word = (format.name, encoding.granularity), "minima" if minima else "scales"

    def made() -> ir.Value:
        codes, factors = (
            (layouts.minimum_codes, layouts.minimum_factors) if minima else (layouts.scale_codes, layouts.scale_factors)
        )
        parts = {f"_{word}_codes": encoding.part(codes), f"_{word}_factors": encoding.part(factors)}
        inputs = [constants.value(weight, suffix, key, part) for suffix, part in parts.items()]
        attributes: graph.Attributes = {
            "K": outline.blocks,
            "block_size": format.super_block or outline.blocks,
            "format": format.name,
        }
        variant = Variant(own_ops.DEQUANTIZE, format.name, moved=word)
        return constants.call(owner_of(weight), variant, inputs, f"{weight.name}_{word}", attributes)

    return constants.once((id(weight), word, key), made)

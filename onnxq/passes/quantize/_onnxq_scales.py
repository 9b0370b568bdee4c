"""Shared by the passes that insert operators of the onnxq domain: what the scales of a weight are stored as."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.encoding.lazy import Encoding
from onnxq.formats import E8M0, Format, QuantizedTensor
from onnxq.formats.kinds.nested import SUPER_BLOCK, NestedScales
from onnxq.own_ops import Variant
from onnxq.own_ops._nested import is_linear
from onnxq.passes.quantize.weight_forms import WeightForms, owner_of


def scale_type(encoding: Encoding) -> ir.DataType:
    """float16 where the format says so or it holds all scales, else float32; powers of two as their exponents."""
    if encoding.format.scale_type == E8M0:
        return ir.DataType.UINT8
    is_half = encoding.half_scales or encoding.format.scale_type == np.float16
    return ir.DataType.FLOAT16 if is_half else ir.DataType.FLOAT


def is_nested(format: Format) -> bool:
    """Whether the scales are quantized once more."""
    return hasattr(format, "base")


def nested_scales(constants: WeightForms, weight: ir.Value, encoding: Encoding, n: int, blocks: int) -> ir.Value:
    """What a node at the head of the weight's graph makes of the scales in 8 bits: [T, blocks, 16]."""
    key = (encoding.format.name, encoding.granularity)

    def made() -> ir.Value:
        supers = -(-n * blocks // SUPER_BLOCK)
        dtype = ir.DataType.INT8 if is_linear(encoding.format.name) else ir.DataType.UINT8
        parts = {
            "_scale_codes": encoding.part(lambda q: _codes(q, supers), dtype, (supers, SUPER_BLOCK)),
            "_scale_factors": encoding.part(lambda q: _of(q).factors, ir.DataType.FLOAT, (supers, 1)),
            "_scale_offset": encoding.part(lambda q: np.asarray(_of(q).offset), ir.DataType.FLOAT, ()),
        }
        inputs = [constants.value(weight, suffix, key, part) for suffix, part in parts.items()]
        variant = Variant(own_ops.NESTED, encoding.format.name)
        dtype = ir.DataType.FLOAT16 if encoding.half_scales else ir.DataType.FLOAT
        attributes = {"N": n, "blocks": blocks, "dtype": int(dtype)}
        return constants.call(owner_of(weight), variant, inputs, f"{weight.name}_scale", attributes)

    return constants.once((id(weight), "nested", key), made)


def _of(q: QuantizedTensor) -> NestedScales:
    assert q.nested is not None
    return q.nested


def _codes(q: QuantizedTensor, supers: int) -> np.ndarray:
    codes = _of(q).codes
    return np.pad(codes, (0, supers * SUPER_BLOCK - codes.size)).reshape(supers, SUPER_BLOCK)

"""Constants behind a DequantizeLinear, and behind a Transpose after it; its scales may be codes behind another one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats
from onnxq.formats import E8M0, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.super_blocks import StoredScales, sharing
from onnxq.model import graph
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    array_of,
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

#: Of formats whose scales are codes: the type of the weight's codes, and that of its scales'.
_TWO_LEVELS = {
    "nvfp4": (ir.DataType.FLOAT4E2M1, ir.DataType.FLOAT8E4M3FN),
    "lpbq": (ir.DataType.INT4, ir.DataType.UINT8),
}


class ReadDequantizeLinear(RestorePass):
    """The output of a DequantizeLinear of constants becomes an initializer. Biases in int32 become floats.

    Scales may be codes behind a DequantizeLinear themselves: those of nvfp4 and lpbq stay what they are.

    Args:
        reads: whether one is to be read.
    """

    def __init__(self, reads: Callable[[ir.Node], bool] = lambda node: True) -> None:
        super().__init__()
        self.reads = reads

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if node.op_type != "DequantizeLinear" or node.domain not in ("", graph.MICROSOFT):
            return False
        found, source = constants_of(node, 0, 2), input_of(node, 0)
        if not found or source is None or not self.reads(node):
            return False
        (codes, zeros), scales = found, _scales_of(node)
        if codes is None or scales is None:
            return False
        how = _granularity(node, tuple(codes.shape.numpy()), scales.shape)
        dtype = ir.DataType(graph.attribute_int(node, "output_dtype", 0) or int(scales.dtype))
        if how is None or dtype not in graph.FLOATS:
            return False
        stored = _stored(codes, scales, zeros, how)
        read = node
        if stored is None:
            w = restored.floats(
                node, source, lambda: _floats(codes, scales, zeros, how), tuple(codes.shape.numpy()), dtype
            )
        else:
            for read in behind(node):
                if graph.is_op(read, "Cast"):
                    dtype = ir.DataType(graph.attribute_int(read, "to", 0))
                else:
                    order = read.attributes["perm"].as_ints() if "perm" in read.attributes else None
                    stored = stored.transposed(order or range(len(stored.shape))[::-1])
            w = restored.weight(node, source, stored, dtype, *scales.parts)
        read_instead(read, w, restored)
        return True


@dataclass(frozen=True)
class _Scales:
    """Scales as they are stored.

    Attributes:
        dtype: of the floats that they are.
        numbers: makes those.
        parts: where those are codes, what else tells a weight from others: what they are made of, and how.
        codes, factors: the codes, and what those are multiplied by, if that is all that is done to them.
        shared: which codes share a factor.
    """

    shape: tuple[int, ...]
    dtype: ir.DataType
    numbers: Callable[[], NDArray]
    parts: tuple[Hashable, ...] = ()
    codes: ir.TensorProtocol | None = None
    factors: ir.TensorProtocol | None = None
    shared: Granularity | None = None

    def format_with(self, kind: ir.DataType, shape: tuple[int, ...], how: Granularity) -> Format | None:
        """The format of two levels that has these scales beside codes of a type.

        Args:
            kind: the type.
            shape, how: of the weight, and which codes share a scale.
        """
        codes, factors = self.codes, self.factors
        if codes is None or factors is None or factors.dtype is not ir.DataType.FLOAT or self.shared is None:
            return None
        if len(shape) != 2 or how.axis is None or how.block is None or self.shared.block is not None:
            return None
        for word, types in _TWO_LEVELS.items():
            format = formats.get(word)
            axis = None if format.super_block is None else 1 - how.axis
            is_shared = self.shared.axis == axis or self.shape == (1, 1)
            is_free = not format.has_fixed_block or how.block == format.default_block
            if types == (kind, codes.dtype) and is_free and is_shared:
                short = format.stored_scales
                assert short is not None
                if not short.is_integer or _are_in(codes.numpy(), short):
                    return format
        return None

    def stored(self, format: Format, how: Granularity) -> StoredScales:
        """The same as a weight of their own, of a format of two levels."""
        short = format.stored_scales
        assert short is not None and self.codes is not None and self.factors is not None
        shared = sharing(format, how)
        factors = self.factors.numpy().reshape(shared.scale_shape(self.shape))
        return StoredScales(QuantizedTensor(short, shared, self.codes.numpy().astype(short.code_type), factors))


def _scales_of(node: ir.Node) -> _Scales | None:
    """Those of a DequantizeLinear; None if they are computed otherwise, or given later."""
    value = input_of(node, 1)
    tensor = graph.constant(value)
    if tensor is not None:
        is_known = tensor.dtype in graph.FLOATS or tensor.dtype is ir.DataType.FLOAT8E8M0
        return _Scales(tuple(tensor.shape.numpy()), tensor.dtype, tensor.numpy) if is_known else None
    made = graph.producer(value)
    found = None if made is None or made.op_type != "DequantizeLinear" else constants_of(made, 0, 1, 2)
    if made is None or not found or made.domain not in ("", graph.MICROSOFT):
        return None
    codes, factors, zeros = found
    if codes is None or factors is None or factors.dtype not in graph.FLOATS:
        return None
    shape = tuple(codes.shape.numpy())
    how = _granularity(made, shape, tuple(factors.shape.numpy()))
    if how is None:
        return None
    dtype = ir.DataType(graph.attribute_int(made, "output_dtype", 0) or int(factors.dtype))

    def numbers() -> NDArray:
        steps = how.spread(factors.numpy().reshape(how.scale_shape(shape)).astype(np.float32), shape)
        return (_differences(codes, zeros, how) * steps).astype(dtype.numpy(), copy=False)

    offsets = array_of(zeros)
    is_plain = dtype == factors.dtype and (offsets is None or not offsets.astype(np.float32).any())
    found = found if is_plain else [None, None]
    return _Scales(shape, dtype, numbers, (*map(id, made.inputs), how, dtype), found[0], found[1], how)


def _granularity(node: ir.Node, shape: tuple[int, ...], scales: tuple[int, ...]) -> Granularity | None:
    """Which codes of a DequantizeLinear share a scale; None where that is told in no way that ONNX knows."""
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


def _differences(codes: ir.TensorProtocol, zeros: ir.TensorProtocol | None, how: Granularity) -> NDArray[np.float32]:
    """Codes less their zero points."""
    shape, numbers = tuple(codes.shape.numpy()), codes.numpy().astype(np.float32)
    if zeros is None:
        return numbers
    return numbers - how.spread(zeros.numpy().astype(np.float32).reshape(how.scale_shape(shape)), shape)


def _are_in(codes: NDArray, short: Format) -> bool:
    """Whether codes are of so many bits, and none is 0: what a scale of nothing stands for is not told."""
    numbers = plain(codes)
    return not numbers.size or (int(numbers.min()) >= 1 and int(numbers.max()) < 1 << short.bits)


def _stored(
    codes: ir.TensorProtocol, scales: _Scales, zeros: ir.TensorProtocol | None, how: Granularity
) -> Stored | None:
    """The weight; None if its codes are of int32, or of a type that no format of ours has."""
    shape, kind = tuple(codes.shape.numpy()), codes.dtype
    offsets = None if zeros is None else plain(zeros.numpy())
    is_symmetric = zeros is None or not zeros.numpy().astype(np.float32).any()
    two_levels = scales.format_with(kind, shape, how) if is_symmetric else None
    if two_levels is not None:
        format = two_levels
    elif kind in _INTEGERS | _NATURALS:
        format = whole_format(kind.bitwidth, offsets, is_signed=kind in _INTEGERS)
    elif kind in _FLOATS and is_symmetric:
        format = formats.get(_FLOATS[kind])
    else:
        found = _short_float(kind, scales.dtype, how) if is_symmetric else None
        if found is None:
            return None
        format = found

    def read() -> QuantizedTensor:
        numbers = codes.numpy()
        if kind is ir.DataType.FLOAT4E2M1:
            numbers = numbers.view(np.uint8)
        if two_levels is not None:
            nested = scales.stored(format, how)
            return QuantizedTensor(format, how, numbers.astype(format.code_type), *nested.values, nested)
        steps = scales.numbers().reshape(how.scale_shape(shape))
        if steps.dtype == E8M0 and format.scale_type != E8M0:
            steps = steps.astype(np.float32)
        if kind in _INTEGERS | _NATURALS:
            return whole(format, plain(numbers), steps, offsets, how, is_signed=kind in _INTEGERS)
        return QuantizedTensor(format, how, numbers.astype(format.code_type, copy=False), steps)

    return Stored(format, how, shape, read, scales.dtype is ir.DataType.FLOAT16)


def _short_float(kind: ir.DataType, scales: ir.DataType, how: Granularity) -> Format | None:
    """The format of 4-bit floats whose scales are of this type."""
    if kind is not ir.DataType.FLOAT4E2M1 or how.block is None:
        return None
    if scales in graph.FLOATS:
        return formats.get("e2m1")
    return formats.get("mxfp4") if how.block == formats.get("mxfp4").default_block else None


def _floats(
    codes: ir.TensorProtocol, scales: _Scales, zeros: ir.TensorProtocol | None, how: Granularity
) -> NDArray[np.float32]:
    """Of codes that no format has, such as biases in int32."""
    shape = tuple(codes.shape.numpy())
    steps = scales.numbers().astype(np.float32).reshape(how.scale_shape(shape))
    return _differences(codes, zeros, how) * how.spread(steps, shape)


def behind(dequantize: ir.Node) -> list[ir.Node]:
    """The Transpose that alone reads a node, if one does; and, of floats of 4 bits, which only newer runtimes unpack, a
    Cast before or behind that: exporters write those in models of float16."""
    codes, found, node = graph.constant(dequantize.inputs[0]), list[ir.Node](), dequantize
    ops = {"Transpose"} | ({"Cast"} if codes is not None and codes.dtype is ir.DataType.FLOAT4E2M1 else set())
    while (reader := graph.only_consumer(node.outputs[0])) is not None and graph.is_op(reader, *ops):
        if reader.op_type == "Cast" and graph.attribute_int(reader, "to", 0) not in map(int, graph.FLOATS):
            break
        ops.remove(reader.op_type)
        found.append(reader)
        node = reader
    return found

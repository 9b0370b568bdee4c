"""Blocks of codes that standard operators unpack at load, as `quantize/store_weights.py` spells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats
from onnxq.formats import E8M0, Format, Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.model.origin import HALVES
from onnxq.passes.restore._restored import Restored, RestorePass, Stored, array_of, before_cast, read_instead

_SCALES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_BYTE_TYPES = {ir.DataType.INT8: "int8", ir.DataType.UINT8: "uint8"}


class ReadChains(RestorePass):
    """Cast and the unpacking of nibbles, Sub or Gather, Mul by scales [blocks, 1], or what casts them, Reshape, Slice,
    Transpose, Cast.

    Args:
        kernels: read kernels of convolutions too, whose blocks lie in flattened rows, by a Reshape at the end: as plain
            floats, since no format has such blocks.
    """

    def __init__(self, *, kernels: bool = False) -> None:
        super().__init__()
        self.kernels = kernels

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if not graph.is_op(node, "Mul") or len(node.inputs) != 2:
            return False
        value, scales = node.inputs[0], graph.constant(before_cast(node.inputs[1]))
        if value is None or scales is None or scales.dtype not in _SCALES or scales.shape.numpy()[1:] != (1,):
            return False
        found = _codes(value)
        if found is None:
            return False
        source, format, read = found
        codes = graph.constant(source)
        assert codes is not None
        count, width = codes.shape.numpy()
        block = width * (2 if format.bits == 4 else 1)
        if format.scale_type == E8M0 and not (block == format.default_block and _are_powers(scales.numpy())):
            format = formats.get("e2m1")  # whose levels are the same
        ends = list(_behind(node))
        if scales.shape.numpy()[0] != count or not ends or not graph.is_op(ends[0], "Reshape"):
            return False
        shape = array_of(graph.constant(ends[0].inputs[1]))
        if shape is None or shape.ndim != 1 or not shape.size or (shape < 1).any() or not block:
            return False
        if int(np.prod(shape)) != count * block or shape[-1] % block:
            return False
        *rest, padded = (int(size) for size in shape)
        k, order = padded, tuple(range(len(shape)))
        last, dtype = ends[0], ir.DataType.FLOAT
        for end in ends[1:]:
            if graph.is_op(end, "Cast") and graph.attribute_int(end, "to", 0) in HALVES:
                last, dtype = end, ir.DataType(graph.attribute_int(end, "to", 0))
                break
            if graph.is_op(end, "Slice") and order == tuple(range(len(shape))):
                bounds = [array_of(graph.constant(value)) for value in end.inputs[1:]]
                if len(bounds) != 3 or any(bound is None for bound in bounds):
                    break
                k = int(bounds[1].reshape(-1)[0]) if bounds[1] is not None else padded
            elif graph.is_op(end, "Transpose") and "perm" in end.attributes:
                order = tuple(end.attributes["perm"].as_ints())
            else:
                break
            last = end
        how, kernel = Granularity(len(rest), block), graph.only_consumer(last.outputs[0])
        is_kernel = kernel is not None and graph.is_op(kernel, "Reshape")
        if is_kernel and not self.kernels:
            return False

        def weight() -> QuantizedTensor:
            numbers, zeros = read()
            steps = scales.numpy().reshape(*rest, padded // block)
            steps = steps.astype(E8M0) if format.scale_type == E8M0 else steps
            flat = numbers.reshape(*rest, padded)[..., :k]
            return QuantizedTensor(format, how, flat, steps, None if zeros is None else zeros.reshape(steps.shape))

        stored = Stored(format, how, (*rest, k), weight, scales.dtype is ir.DataType.FLOAT16).transposed(order)
        if kernel is not None and is_kernel:
            return _read_kernel(node, kernel, source, stored, dtype, restored)
        above = value.producer()
        zeros = before_cast(above.inputs[1]) if above is not None and graph.is_op(above, "Sub") else None
        read_instead(last, restored.weight(node, source, stored, dtype, zeros, before_cast(node.inputs[1])), restored)
        return True


def _read_kernel(
    node: ir.Node, end: ir.Node, source: ir.Value, stored: Stored, dtype: ir.DataType, restored: Restored
) -> bool:
    """Whether the weight in the shape that the Reshape `end` gives it could take that one's place, in floats."""
    sizes = array_of(graph.constant(end.inputs[1]))
    if sizes is None or sizes.ndim != 1 or (sizes < 1).any() or np.prod(sizes) != np.prod(stored.shape):
        return False
    shape = tuple(int(size) for size in sizes)
    w = restored.floats(node, source, lambda: stored.read().dequantize().reshape(shape), shape, dtype)
    read_instead(end, w, restored)
    return True


def _behind(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes that alone read what the one before makes."""
    reader = graph.only_consumer(node.outputs[0])
    while reader is not None:
        yield reader
        reader = graph.only_consumer(reader.outputs[0]) if len(reader.outputs) == 1 else None


_Read = Callable[[], tuple[NDArray, NDArray | None]]


def _codes(value: ir.Value) -> tuple[ir.Value, Format, _Read] | None:
    """Where the codes of blocks lie, in which format, and what reads them and the zero points of blocks."""
    node = value.producer()
    if graph.is_op(node, "Gather") and node is not None:
        levels, inner = array_of(graph.constant(node.inputs[0])), _nibbles(before_cast(node.inputs[1]))
        words = [word for word in ("nf4", "fp4", "mxfp4") if _is_table(formats.get(word), levels)]
        if inner is None or not words:
            return None
        packed = inner
        return packed, formats.get(words[0]), lambda: (_low_first(packed), None)
    if graph.is_op(node, "Sub") and node is not None:
        inner, offset = _nibbles(node.inputs[0]) or _bytes(node.inputs[0]), node.inputs[1]
        constant = array_of(graph.constant(offset))
        zeros = _bytes(offset)
        if inner is None:
            return None
        is_halved = _nibbles(node.inputs[0]) is not None
        if constant is not None and constant.size == 1 and constant.item() == 8 and is_halved:
            return inner, formats.get("int4"), lambda: ((_low_first(inner) - np.uint8(8)).view(np.int8), None)
        tensor = None if zeros is None else graph.constant(zeros)
        if tensor is None:
            return None
        word = "uint4" if is_halved else "uint8"
        return inner, formats.get(word), lambda: (_low_first(inner) if is_halved else _plain(inner), tensor.numpy())
    whole = _bytes(value)
    tensor = graph.constant(whole)
    if whole is None or tensor is None or _BYTE_TYPES.get(tensor.dtype) != "int8":
        return None
    return whole, formats.get("int8"), lambda: (_plain(whole), None)


def _is_table(format: Format, levels: NDArray | None) -> bool:
    return levels is not None and format.levels is not None and np.array_equal(levels, format.levels)


def _are_powers(scales: NDArray) -> bool:
    """Whether all are powers of two, which E8M0 holds."""
    return bool((np.frexp(scales.astype(np.float32))[0] == 0.5).all())


def _bytes(value: ir.Value | None) -> ir.Value | None:
    """The constant in bytes that a value is cast from."""
    source = before_cast(value)
    tensor = graph.constant(source)
    is_whole = tensor is not None and tensor.dtype in _BYTE_TYPES and len(tensor.shape) == 2
    return source if is_whole and source is not value else None


def _nibbles(value: ir.Value | None) -> ir.Value | None:
    """The bytes of which a Concat makes low halves, then high ones."""
    node = graph.producer(value)
    if node is None or not graph.is_op(node, "Concat") or len(node.inputs) != 2:
        return None
    low, high = (graph.producer(part) for part in node.inputs)
    if not graph.is_op(low, "Sub") or not graph.is_op(high, "Floor") or low is None:
        return None
    source = _bytes(low.inputs[0])
    tensor = graph.constant(source)
    return source if tensor is not None and tensor.dtype is ir.DataType.UINT8 else None


def _low_first(source: ir.Value) -> NDArray[np.uint8]:
    packed = source.const_value
    assert packed is not None
    array = packed.numpy()
    return np.concatenate([array & np.uint8(15), array >> np.uint8(4)], axis=1)


def _plain(source: ir.Value) -> NDArray:
    assert source.const_value is not None
    return source.const_value.numpy()

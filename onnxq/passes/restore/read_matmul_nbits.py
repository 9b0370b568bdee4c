"""onnxruntime's products of weights in blocks, com.microsoft.MatMulNBits."""

from __future__ import annotations

from typing import NamedTuple

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
    array_of,
    constants_of,
    input_of,
    whole,
    whole_format,
)

_B, _SCALES, _ZEROS, _GROUPS, _BIAS = range(1, 6)


class ReadMatMulNBits(RestorePass):
    """MatMulNBits becomes a MatMul by [K, N], and an Add of its bias.

    Zero points that are no whole numbers, and columns in an order of their own (`g_idx`), are no format's: such weights
    are floats, of the same value.
    """

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        found = constants_of(node, *range(_B, _BIAS))
        source = input_of(node, _B)
        if not graph.is_op(node, "MatMulNBits", domain=graph.MICROSOFT) or not found or source is None:
            return False
        packed, scales, zeros, groups = found
        sizes = _Sizes(*(graph.attribute_int(node, word, 0) for word in ("N", "K", "bits", "block_size")))
        if packed is None or scales is None or not sizes.are_known:
            return False
        dtype = restored.float_type(node)
        if groups is not None or (zeros is not None and zeros.dtype is not ir.DataType.UINT8):

            def floats() -> NDArray:
                return _floats(packed.numpy(), scales.numpy(), array_of(zeros), array_of(groups), sizes)

            w = restored.floats(node, source, floats, (sizes.k, sizes.n), dtype)
        else:
            w = restored.weight(node, source, _stored(packed, scales, zeros, sizes), dtype)
        restored.product(node, w, input_of(node, _BIAS))
        return True


class _Sizes(NamedTuple):
    n: int
    k: int
    bits: int
    block: int

    @property
    def are_known(self) -> bool:
        return self.bits in (2, 4, 8) and min(self.n, self.k, self.block) > 0

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)


def _stored(
    packed: ir.TensorProtocol, scales: ir.TensorProtocol, zeros: ir.TensorProtocol | None, sizes: _Sizes
) -> Stored:
    n, blocks, how = sizes.n, sizes.blocks, Granularity(1, sizes.block)
    format = whole_format(sizes.bits, _zero_points(array_of(zeros), sizes), is_signed=False)

    def read() -> QuantizedTensor:
        codes, offsets = _codes(packed.numpy(), sizes), _zero_points(array_of(zeros), sizes)
        return whole(format, codes, scales.numpy().reshape(n, blocks), offsets, how, is_signed=False)

    half = scales.dtype is ir.DataType.FLOAT16
    return Stored(format, how, (n, sizes.k), read, half).transposed((1, 0))


def _codes(packed: NDArray, sizes: _Sizes) -> NDArray:
    """[N, K] unsigned codes."""
    rows = packed.reshape(sizes.n, sizes.blocks, -1)
    codes = layouts.from_low_first(rows, sizes.bits, sizes.block).reshape(sizes.n, -1)
    return np.ascontiguousarray(codes[:, : sizes.k])


def _zero_points(zeros: NDArray | None, sizes: _Sizes) -> NDArray:
    """[N, blocks], or without any the middle code, for which they stand then."""
    if zeros is None:
        return np.full((sizes.n, sizes.blocks), 1 << (sizes.bits - 1), np.uint8)
    return layouts.from_low_first(zeros.reshape(sizes.n, -1), sizes.bits, sizes.blocks)


def _floats(
    packed: NDArray, scales: NDArray, zeros: NDArray | None, groups: NDArray | None, sizes: _Sizes
) -> NDArray[np.float32]:
    """[K, N] by the operator's definition, whatever the zero points, and the groups of columns."""
    of = np.arange(sizes.k) // sizes.block if groups is None else groups.astype(np.intp)[: sizes.k]
    is_whole = zeros is None or zeros.dtype == np.uint8
    offsets = _zero_points(zeros, sizes) if is_whole or zeros is None else zeros.reshape(sizes.n, sizes.blocks)
    steps = scales.reshape(sizes.n, sizes.blocks).astype(np.float32)
    return ((_codes(packed, sizes).astype(np.float32) - offsets.astype(np.float32)[:, of]) * steps[:, of]).T

"""onnxruntime's products of weights in the levels of bitsandbytes, com.microsoft.MatMulBnb4."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.restore._restored import Restored, RestorePass, Stored, constants_of, input_of

#: By `quant_type`.
_WORDS = {0: "fp4", 1: "nf4"}


class ReadMatMulBnb4(RestorePass):
    """MatMulBnb4 becomes a MatMul by [K, N]. Blocks that reach over the ends of rows are no format's: floats."""

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        found, source = constants_of(node, 1, 2), input_of(node, 1)
        if not graph.is_op(node, "MatMulBnb4", domain=graph.MICROSOFT) or not found or source is None:
            return False
        (packed, absmax), word = found, bnb4_format(node)
        n, k, block = (graph.attribute_int(node, name, 0) for name in ("N", "K", "block_size"))
        if packed is None or absmax is None or word is None or min(n, k, block) < 1:
            return False
        if not graph.attribute_int(node, "transB", 1):
            return False
        format, dtype = formats.get(word), restored.float_type(node)

        def flat() -> QuantizedTensor:
            return layouts.from_matmul_bnb4(format, packed.numpy().reshape(-1), absmax.numpy(), n * k, block)

        def rows() -> QuantizedTensor:
            q = flat()
            assert q.scales is not None
            return QuantizedTensor(format, Granularity(1, block), q.codes.reshape(n, k), q.scales.reshape(n, -1))

        if k % block:
            w = restored.floats(node, source, lambda: flat().dequantize().reshape(n, k).T, (k, n), dtype)
        else:
            half = absmax.dtype is ir.DataType.FLOAT16
            stored = Stored(format, Granularity(1, block), (n, k), rows, half)
            w = restored.weight(node, source, stored.transposed((1, 0)), dtype)
        restored.product(node, w, None)
        return True


def bnb4_format(node: ir.Node) -> str | None:
    """The word of the format that a MatMulBnb4 reads, if there is one."""
    return _WORDS.get(graph.attribute_int(node, "quant_type", 0))

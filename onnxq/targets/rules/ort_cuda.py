"""onnxruntime's CUDA provider, version 1.31: the names of the kernels and messages in its library
(`libonnxruntime_providers_cuda.so`), and the descriptions of the operators (`get_all_operator_schema`).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.targets.rules import Found, Rule, View
from onnxq.targets.rules._pairs import ON_CODES, QUANTIZE, is_activation, is_pair
from onnxq.targets.rules._types import ELSEWHERE, lacks_trees, lacks_types

#: Operators on codes that it has.
HAS = ("MatMulInteger", "QAttention")
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
BITS, LONGEST_OF_2 = (2, 4, 8), 256
FP8, FP4 = "MatMulBlockQuantizedFp8Weight", "MatMulBlockQuantizedFp4Weight"


def no_int8(view: View) -> Found:
    """int8 kernels are the processor's: such a node costs two copies."""
    for node in view.nodes:
        if node.op_type in ON_CODES and node.op_type not in HAS:
            yield node, f"the CUDA provider has no {node.op_type}: the processor computes it", False
        elif is_pair(node, QUANTIZE) and is_activation(view, node):
            yield (
                node,
                "the CUDA provider computes in floating point behind it: rounding costs time and gives none",
                False,
            )


def packed_products(view: View) -> Found:
    """MatMulNBits has 2, 4 and 8 bits, in blocks of a power of two from 16 on, with 2 bits up to 256."""
    for node in view.of("MatMulNBits", domain=graph.MICROSOFT):
        bits, block = graph.attribute_int(node, "bits", 4), graph.attribute_int(node, "block_size", 0)
        if bits not in BITS:
            yield node, f"the CUDA provider's MatMulNBits has no {bits} bits", True
        if block < 16 or block & (block - 1) or (bits == 2 and block > LONGEST_OF_2):
            yield node, f"the CUDA provider's MatMulNBits has no blocks of {block}", True


def float_blocks(view: View) -> Found:
    """Products by float8 and float4 blocks read half precision, float8 in blocks of whole 16."""
    for node in view.of(FP8, FP4, domain=graph.MICROSOFT):
        if not _is_half(view, node):
            yield node, f"{node.op_type} reads float16 and bfloat16 only", True
        if node.op_type == FP8 and graph.attribute_int(node, "block_size", 128) % 16:
            yield node, f"{FP8} reads blocks of multiples of 16", True


def experts(view: View) -> Found:
    """QMoE computes in half precision, of 2, 4 and 8 bits, in whole blocks."""
    for node in view.of("QMoE", domain=graph.MICROSOFT):
        codes = node.inputs[2]
        if not _is_half(view, node):
            yield node, "the CUDA provider's QMoE computes in float16 and bfloat16 only", True
        bits, block = graph.attribute_int(node, "expert_weight_bits", 4), graph.attribute_int(node, "block_size", 0)
        k = None if codes is None or codes.shape is None else codes.shape[-1]
        if block and isinstance(k, int) and (k * 8 // max(1, bits)) % block:
            yield node, f"QMoE wants rows of whole blocks of {block}", True


def _is_half(view: View, node: ir.Node) -> bool:
    """Whether its first input may be in half precision."""
    x = node.inputs[0]
    return x is None or view.types.of(x).dtype in (None, *HALVES)


def no_strings_and_trees(view: View) -> Found:
    """Strings, trees, encoders and the like have kernels on processors only."""
    yield from lacks_types(view, "the CUDA provider", {ir.DataType.STRING: (ELSEWHERE, False)})
    yield from lacks_trees(view, "the CUDA provider", ELSEWHERE, refuses=False)


RULES: tuple[Rule, ...] = (no_int8, packed_products, float_blocks, experts, no_strings_and_trees)

"""onnxq: operators of the onnxq domain, each with its body in standard ONNX: runs anywhere, fast with the library."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq import formats, layouts, own_ops
from onnxq.model.weights import Weight, fits_half
from onnxq.plan import BLOCKS, Choice, Method, in_float
from onnxq.schemes import INTEGER_SCHEMES, SCHEMES, weight_format
from onnxq.targets import Target, is_plain_matmul, needs_plain_matmul
from onnxq.targets._recurrent import why_no_kernel

#: Numbers from which on a weight in float16 is multiplied by as it lies: it is read from memory then, half as many
#: bytes as of float32, and stays in the file's mapping. Smaller ones stay in caches, where unpacking them takes longer.
LARGE = 1 << 22
#: Times the codes of a row that its tiles may take, which hold whole blocks, where codes have few bits to be small.
MOST_PADDED = 1.125


class onnxq(Target):
    name = "onnxq"
    unpacks_wide_blocks = True
    float_types = ("float32", "float16")
    static = ("Conv", "ConvTranspose", "MatMul", "Gemm")
    dynamic = ("MatMul", "Gemm", *own_ops.CELLS)
    packed = ("MatMul", "Gemm", "Gather", *own_ops.CELLS)
    domains = (own_ops.DOMAIN,)
    one_is_enough = True
    passes = (
        "insert_qdq",
        "quantize_dynamically",
        "insert_onnxq_nodes",
        "store_weights",
        "convert_to_half",
    )

    def opset_for(self, scheme: str) -> int:
        if scheme in INTEGER_SCHEMES:
            return max(own_ops.FLOAT_OPSET, super().opset_for(scheme))
        if weight_format(scheme) == "float16":
            return super().opset_for(scheme)
        if scheme not in SCHEMES and formats.get(scheme).multiplied_as is None and super().opset_for(scheme):
            return super().opset_for(scheme)
        return own_ops.OPSET

    def refusal(self, word: str) -> str:
        return ""

    def preferred(self, weight: Weight, wish: Choice) -> Choice:
        is_packed = wish.method is Method.PACKED and formats.get(wish.format or "").multiplied_as is not None
        return _of_rows(weight, wish) if is_packed and wish.op in ("Gather", "Gemm", "MatMul") else wish

    def place(self, weight: Weight, wish: Choice) -> Choice:
        format = formats.get(wish.format or "")
        if wish.op in own_ops.CELLS:
            return _of_recurrent(weight, wish)
        if wish.method is Method.PACKED and format.multiplied_as is None:
            return in_float(wish, f"no kernel multiplies by {wish.format}: unpacked when the model loads")
        k, block = weight.shape[weight.role.contraction], wish.block or 1
        is_wasteful = -(-k // block) * block > MOST_PADDED * k
        if wish.method is Method.PACKED and format.kernel is None and is_wasteful:
            return in_float(wish, "blocks would be filled up with too many codes: unpacked when the model loads")
        if wish.method in (Method.STORED, Method.HALF) and format.is_dense and is_plain_matmul(weight):
            is_float = weight.tensor.dtype is ir.DataType.FLOAT  # products in other types stay what they are
            is_worth_it = format.name != "float16" or weight.elements >= LARGE
            return wish.to(Method.PACKED, format.name, None) if is_float and is_worth_it else wish
        return needs_plain_matmul(weight, wish)


def _of_rows(weight: Weight, wish: Choice) -> Choice:
    """Rows that do not fill their blocks, in the fewest bytes that hold them at least as exactly: in shorter blocks,
    which are filled up with fewer codes. Those of a table that are shorter than a block also as other targets store
    them, in 8 bits with one scale a row or in 16; longer ones stay packed, as little is to be saved and they would take
    more memory. Products have shorter blocks only where not one would be full: there they are faster too.
    """
    k, block, format = weight.shape[weight.role.contraction], wish.block or 1, formats.get(wish.format or "")
    is_table = wish.op == "Gather"
    if k % block == 0 or (k > block and not is_table):
        return wish
    shorter = [block] if format.has_fixed_block else [b for b in BLOCKS if b < block] + [block]
    best = min(shorter, key=lambda block: (_bytes_of_row(format, k, block), -block))
    row, packed = f"a row of {k} would be filled up", _bytes_of_row(format, k, best)
    if is_table and k < block and 2 * k <= min(k + 4, packed) and fits_half(weight.tensor):
        return wish.to(Method.STORED, wish.half or "float16", None, f"{row} to {best}: 16 bits are smaller")
    if is_table and k < block and k + 4 < packed:
        return wish.to(Method.STORED, "int8", None, f"{row} to {best}: 8 bits a row are smaller")
    return wish if best == block else wish.to(wish.method, wish.format, best, f"{row} more by blocks of {block}")


def _bytes_of_row(format: formats.Format, k: int, block: int) -> float:
    """Of `k` codes in tiles, their scales and zero points; float16 holds most scales of float32."""
    bits = format.bits if format.kernel is None else layouts.onnxq_width(format.bits)
    scale = 2 if format.scale_type == np.float32 and format.base is None else 1
    return -(-k // block) * (block * bits / 8 + scale + (format.offset_type is not None))


def _of_recurrent(weight: Weight, wish: Choice) -> Choice:
    """In int8 with one scale a row a recurrent layer has a kernel, whatever becomes of its activations."""
    is_int8 = wish.format == "int8" and wish.block is None and wish.granularity is None
    computes = wish.method in (Method.DYNAMIC, Method.PACKED)
    if not computes and not (is_int8 and wish.method is Method.STORED):
        return wish
    reason = why_no_kernel(weight.node) if is_int8 else f"no kernel of {wish.op} reads such codes"
    if reason:
        return in_float(wish, f"{reason}: unpacked when the model loads")
    return wish if computes else wish.to(Method.PACKED, "int8", None, wish.reason)

"""MatMulNBits: y [..., N] = x [..., K] · wᵀ + bias, the weight packed in tiles (`layouts.onnxq_tiles`).

An integer format is decoded by DequantizeLinear on blocks: stock onnxruntime folds what is in front of it and fuses the
rest to its own kernel of 4 or 8 bits, which rounds activations to int8. An `exact` product, one whose weight others
read (`shared`: codes that several nodes read are not fused, but unpacked in every run), and one in a format that has a
table of levels, is decoded by Mul, which onnxruntime folds: the weight is float from then on.

A Concat of x alone keeps a DequantizeLinear in front of x apart: onnxruntime fuses two into MatMulIntegerToFloat, which
knows no blocks. One of the sum keeps a Relu, Clip or Add behind apart, with which onnxruntime would make one kernel in
float (`passes/fusing/part_products.py`).
"""

from __future__ import annotations

from onnxq.formats import E8M0
from onnxq.own_ops import MATMUL, Variant
from onnxq.own_ops._parts import FLOAT, TILES, UINT4, kernel_values, nibbles, scale_values, scaled


def lines(v: Variant) -> list[str]:
    inputs = ["x", "weight", "scales", *["zero_points"] * (v.zero_points or v.bias), *["bias"] * v.bias]
    text = [
        f"{MATMUL} <K, N, block_size, format, activations> ({', '.join(inputs)}) => (y) {{",
        TILES,
        *nibbles(v, "weight", axis=3),
        "turned = Transpose <perm = [1, 3, 0, 2]> (unpacked)",  # [Kp / 8, 8, T, 16]
        "padded_shape = Concat <axis = 0> (kp, rest)",
        "padded = Reshape (turned, padded_shape)",  # [Kp, 16 T]
        "origin = Constant <value_ints = [0, 0]> ()",
        "kn = Concat <axis = 0> (k, n)",
        "codes = Slice (padded, origin, kn)",
        *_turned("scales"),
        *scale_values("scales_n", exponents=v.decoded.scale_type == E8M0),
    ]
    if v.zero_points:
        text += _turned("zero_points")
    text += [f"x32 = Cast <to = {FLOAT}> (x)"]
    is_fused = v.decoded.is_integer and not (v.exact or v.shared)
    if is_fused:
        text += [*_dequantized(v), "apart = Concat <axis = -1> (x32)", "product = MatMul (apart, w)"]
    else:
        text += [*kernel_values(v, "codes", "zero_points_n", axis=0), *scaled(axis=0), "product = MatMul (x32, w)"]
    made = "product"
    if v.bias:
        made, text = "sum", [*text, f"bias32 = Cast <to = {FLOAT}> (bias)", "sum = Add (product, bias32)"]
    if is_fused:
        made, text = "alone", [*text, f"alone = Concat <axis = -1> ({made})"]
    return [*text, f"y = CastLike ({made}, x)", "}"]


def _turned(name: str) -> list[str]:
    """[blocks, N] from [T, blocks, 16]."""
    return [
        f"{name}_turned = Transpose <perm = [1, 0, 2]> ({name})",
        f"{name}_shape2 = Concat <axis = 0> (blocks, rest)",
        f"{name}_padded = Reshape ({name}_turned, {name}_shape2)",
        f"{name}_n = Slice ({name}_padded, zero, n, one)",
    ]


def _dequantized(v: Variant) -> list[str]:
    """`w` [K, N]."""
    text = ["zeros = Identity (zero_points_n)"]
    if not v.zero_points:
        text = [
            f"middle = Constant <value = uint8 {{{1 << (v.bits - 1)}}}> ()",
            "scale_shape = Shape (scale)",
            "zeros = Expand (middle, scale_shape)",
        ]
    codes, zeros = "codes", "zeros"
    if v.bits == 4:
        text += [f"codes4 = Cast <to = {UINT4}> (codes)", f"zeros4 = Cast <to = {UINT4}> (zeros)"]
        codes, zeros = "codes4", "zeros4"
    return [*text, f"w = DequantizeLinear <axis = 0, block_size: int = @block_size> ({codes}, scale, {zeros})"]
